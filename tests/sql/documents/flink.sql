-- Source: Flink's FLIP-132 (temporal table DDL), FLIP-234 (retryable lookup join). Repairs: `...` in WITH left out, o.oder_id is
-- o.order_id, 'debezium-json'/'canal-json' is the first of them, a comma before a closing bracket is left out.
-- +
CREATE TABLE versioned_rates (
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    WATERMARK FOR currency_time AS currency_time, -- event time  (currency_time)
    PRIMARY KEY(currency) NOT ENFORCED            -- primary key (currency)
) WITH (
);
-- +
CREATE TABLE latest_rates (  -- No event time and No primary key
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3)
) WITH (
);
-- +
CREATE TABLE orders (
    order_id STRING,
    currency STRING,
    amount INT,
    proctime as PROCTIME(),
    order_time TIMESTAMP(3),
    WATERMARK FOR order_time AS order_time - INTERVAL '30' SECOND
) WITH (
);
-- +
SELECT
  o.order_id,
   o.order_time,
  o.amount * r.rate AS amount,
  r.currency
FROM orders AS o, versioned_rates FOR SYSTEM_TIME AS OF o.order_time r
on o.currency = r.currency;
-- !UNKNOWN_COLUMN as printed
SELECT
  o.oder_id,
   o.order_time,
  o.amount * r.rate AS amount,
  r.currency
FROM orders AS o, versioned_rates FOR SYSTEM_TIME AS OF o.order_time r
on o.currency = r.currency;
-- +
SELECT
  o.order_id,
  o.proctime,
  o.amount * r.rate AS amount,
  r.currency
FROM orders AS o, latest_rates FOR SYSTEM_TIME AS OF o.proctime r
on o.currency = r.currency;
-- !NOT_VERSIONED a latest-only table has no versions in event time
SELECT o.order_id
FROM orders AS o, latest_rates FOR SYSTEM_TIME AS OF o.order_time r
on o.currency = r.currency;
-- +
CREATE TABLE versioned_rates1 (
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    WATERMARK FOR currency_time AS currency_time, -- event time  (currency_time)
    PRIMARY KEY(currency) NOT ENFORCED            -- primary key (currency)
) WITH (
  'format' = 'debezium-json'
);
-- +
CREATE TABLE versioned_rates2 (
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    changelog_time TIMESTAMP(3) as SYSTEM_METADATA("db_operation_time"),
    WATERMARK FOR changelog_time AS changelog_time, -- event time  (changelog_time)
    PRIMARY KEY(currency) NOT ENFORCED              -- primary key  (currency)
) WITH (
  'format' = 'debezium-json'
);
-- +
CREATE TABLE versioned_rates3 (
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    WATERMARK FOR currency_time AS currency_time, -- event time
    PRIMARY KEY(currency) NOT ENFORCED            -- primary key
) WITH (
  'format' = 'json'                               -- append only source
);
-- +
CREATE TABLE rates (
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    WATERMARK FOR currency_time AS currency_time   -- event time
) WITH (
  'format' = 'json'                               -- append only source
);
-- +
CREATE VIEW versioned_rates4 AS
SELECT currency, rate, currency_time
  FROM (
      SELECT *,
      ROW_NUMBER() OVER (PARTITION BY currency ORDER BY currency_time DESC) AS rowNum
      FROM rates )
WHERE rowNum = 1;
-- +
SELECT o.order_id, o.amount * r.rate AS amount
FROM orders AS o LEFT JOIN versioned_rates4 FOR SYSTEM_TIME AS OF o.order_time AS r
ON o.currency = r.currency;
-- +
CREATE TABLE latest_rates1 ( -- No event time and No primary key
    currency STRING,
    rate DECIMAL(38, 10)
) WITH (
);
-- +
CREATE VIEW latest_rates2 AS -- No event time and No primary key
SELECT currency, rate
FROM rates;
-- +
CREATE TABLE latest_rates3 ( -- No primary key
    currency STRING,
    rate DECIMAL(38, 10),
    currency_time TIMESTAMP(3),
    WATERMARK FOR currency_time AS currency_time
) WITH (
);
-- +
CREATE TABLE latest_rates4 ( -- No event time
    currency STRING,
    rate DECIMAL(38, 10),
    proctime AS PROCTIME(),
    PRIMARY KEY(currency) NOT ENFORCED
) WITH (
);
-- +
CREATE TABLE rates_with_time (currency STRING, rate DECIMAL(38, 10), proctime AS PROCTIME());
-- +
CREATE VIEW latest_rates5 AS -- No event time and only has a inferred primary key
SELECT currency, rate, proctime
  FROM (
      SELECT *,
      ROW_NUMBER() OVER (PARTITION BY currency ORDER BY proctime DESC)
      AS rowNum FROM rates_with_time)
WHERE rowNum = 1;
-- +FUNCTION rates_function rates currency_time currency
SELECT
      o.order_id,
      o.order_time,
      o.amount * r.rate AS amount,
      r.currency
    FROM
      orders AS o,
      LATERAL TABLE(rates_function(o.order_time)) AS r
    WHERE o.currency = r.currency;
-- +
CREATE TABLE user_actions (
  user_name STRING,
  data STRING,
  user_action_time TIMESTAMP(3),
  -- declare user_action_time as event time attribute and use 5 seconds delayed watermark strategy
  WATERMARK FOR user_action_time AS user_action_time - INTERVAL '5' SECOND
) WITH (
);
-- +
CREATE TABLE user_actions_2 (
  user_name STRING,
  data STRING,
  user_action_time AS PROCTIME() -- declare an additional field as a processing time attribute
) WITH (
);
-- +
CREATE TEMPORARY TABLE Customers (
  id INT,
  name STRING,
  country STRING,
  zip STRING
) WITH (
  'connector' = 'jdbc',
  'url' = 'jdbc:postgresql://localhost:5432/customerdb',
  'table-name' = 'customers'
);
-- !UNKNOWN_CONNECTOR as printed: MySQL is not among the databases that are looked up
CREATE TEMPORARY TABLE Customers_mysql (
  id INT,
  name STRING,
  country STRING,
  zip STRING
) WITH (
  'connector' = 'jdbc',
  'url' = 'jdbc:mysql://mysqlhost:3306/customerdb',
  'table-name' = 'customers'
);
-- !UNKNOWN_OPTION the rejected alternative of the FLIP: retry belongs to the join
CREATE TEMPORARY TABLE Customers_2 (id INT) WITH (
  'connector' = 'jdbc',
  'url' = 'jdbc:postgresql://localhost:5432/customerdb',
  'table-name' = 'customers',
  'lookup_miss.retry-strategy'='fixed-delay'
);
-- +
CREATE TABLE customer_orders (order_id INT, total INT, customer_id INT, proc_time AS PROCTIME());
-- +
SELECT o.order_id, o.total, c.country, c.zip
FROM customer_orders AS o
  JOIN Customers FOR SYSTEM_TIME AS OF o.proc_time AS c
    ON o.customer_id = c.id;
-- +
SELECT /*+ LOOKUP('table'='Customers', 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay', 'fixed-delay'='10s','max-attempts'='3') */
    o.order_id, o.total, c.country, c.zip
FROM customer_orders AS o
  JOIN Customers FOR SYSTEM_TIME AS OF o.proc_time AS c
    ON o.customer_id = c.id;
-- +
SET 'table.exec.async-lookup.timeout' = '180s';
-- +
CREATE VIEW v_first_join AS
SELECT o.order_id, o.total, c.country, c.zip
FROM customer_orders AS o
-- Note: the original inner join change to left join
LEFT JOIN Customers FOR SYSTEM_TIME AS OF o.proc_time AS c
    ON o.customer_id = c.id;
-- +
CREATE VIEW v_first_join_empty AS
SELECT order_id, total, country FROM v_first_join WHERE zip IS NULL;
-- !NOT_OFFERED the rejected DEFER of the FLIP
SELECT o.order_id, o.total
FROM TABLE(DEFER(v_first_join_empty, proc_time, '10 s')) AS o;
-- !LOOKUP_ONLY an outside table is joined as of the processing time alone
SELECT o.order_id FROM customer_orders AS o JOIN Customers c ON o.customer_id = c.id;
-- !CROSS_JOIN the general form of FLIP-132 without a key
SELECT o.order_id FROM orders AS o JOIN versioned_rates FOR SYSTEM_TIME AS OF o.order_time AS r ON o.amount > 5;
-- !TEMPORAL_SIDE
SELECT o.order_id FROM orders AS o RIGHT JOIN versioned_rates FOR SYSTEM_TIME AS OF o.order_time AS r ON o.currency = r.currency;
