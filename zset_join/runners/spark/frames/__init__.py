"""What is read from the plan of a DataFrame: by the JVM of a classic session, or from the messages of Spark Connect."""
