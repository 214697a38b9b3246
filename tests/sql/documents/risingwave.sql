-- Source: RisingWave, RFC 0049 Temporal Join; the tables are declared as its text describes them.
-- +
CREATE SOURCE a (id INT, col INT, even_time TIMESTAMP, WATERMARK FOR even_time AS even_time - INTERVAL '5' SECOND);
-- +
CREATE TABLE b (id INT PRIMARY KEY, v VARCHAR, t TIMESTAMP, WATERMARK FOR t AS t);
-- +
SELECT a.id, b.v FROM A LEFT JOIN B FOR SYSTEM_TIME AS OF NOW() ON A.col = B.id;
-- +
SELECT a.id, b.v FROM A LEFT JOIN B FOR SYSTEM_TIME AS OF A.even_time ON A.col = B.id;
-- +
CREATE MATERIALIZED VIEW enriched AS SELECT a.id AS a_id, b.v FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.col = b.id;
-- !CROSS_JOIN the primary key of the inner side must be in the equivalence condition
SELECT a.id FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF a.even_time ON a.col > b.id;
