"""What reaches into the JVM beside a classic session; nothing else of the library does, and Spark Connect needs none of it."""
