"""Eight pipelines that look like work people have: data made here, a check of what matters, `verify()`, a picture."""
