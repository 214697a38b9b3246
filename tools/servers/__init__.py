"""Servers on loopback for tests, demos, faults and benchmarks: PostgreSQL, Redis, Kafka, Debezium, without root."""
