"""Every file operation of the project: one hook they all end in, a local disk, and file systems that are not local.

`operations` is the hook: to log, fail or cut off an operation, wrap it there. `local` holds the operations of a
local disk, one function each. `filesystem` puts one face on local paths and on object stores: whole files, written once.
Nothing here depends on checkpoints, outputs or Spark.
"""

from __future__ import annotations
