"""Reading the plan of a DataFrame: from the JVM of a classic session, or from the messages of Spark Connect."""
