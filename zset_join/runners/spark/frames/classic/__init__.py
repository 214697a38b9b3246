"""Access to the JVM of a classic session. No other module uses it, and Spark Connect needs none of it."""
