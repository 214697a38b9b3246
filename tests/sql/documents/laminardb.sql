-- Source: LaminarDB, F021 Temporal Joins; the tables are declared as its text describes them.
-- +
CREATE TABLE orders (id INT, currency STRING, customer_id INT, order_time TIMESTAMP);
-- +
CREATE TABLE currency_rates (currency STRING PRIMARY KEY, rate DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at);
-- +
CREATE TABLE customers (id INT PRIMARY KEY, tier STRING);
-- +
CREATE TABLE transactions (id INT, product_id INT, ts TIMESTAMP);
-- +
CREATE TABLE products (id INT PRIMARY KEY, price DOUBLE, version_col TIMESTAMP);
-- +
SELECT o.*, r.rate
FROM orders o
JOIN currency_rates FOR SYSTEM_TIME AS OF o.order_time r
    ON o.currency = r.currency;
-- +
SELECT o.*, c.tier
FROM orders o
JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() c
    ON o.customer_id = c.id;
-- +
SELECT t.*, p.price
FROM transactions t
JOIN products FOR SYSTEM_TIME AS OF t.ts VERSIONED ON version_col p
    ON t.product_id = p.id;
-- !UNKNOWN_COLUMN
SELECT t.*, p.price
FROM transactions t
JOIN products FOR SYSTEM_TIME AS OF t.ts VERSIONED ON version_column p
    ON t.product_id = p.id;
