-- Forms of Spark SQL that the issue names, each once.
-- +
CREATE TABLE trades (id INT, k STRING, t TIMESTAMP_NTZ, price DECIMAL(10,2));
-- +
CREATE TABLE quotes (k STRING, t TIMESTAMP_NTZ, bid DECIMAL(10,2));
-- +
SELECT a.id, b.bid FROM trades a ASOF JOIN quotes b MATCH_CONDITION (a.t >= b.t) ON a.k = b.k;
-- +
SELECT a.id, b.bid FROM trades a ASOF LEFT JOIN quotes b ON a.k = b.k AND a.t > b.t;
-- +
SELECT a.id FROM trades a LEFT SEMI JOIN quotes b ON a.k = b.k;
-- +
SELECT a.id FROM trades a LEFT ANTI JOIN quotes b ON a.k <=> b.k;
-- +
SELECT id FROM trades JOIN quotes USING (k);
-- +
SELECT k, count(*) AS n, sum(price) FILTER (WHERE price > 1) AS large FROM trades GROUP BY k HAVING count(*) > 1;
-- +
SELECT k FROM trades UNION ALL SELECT k FROM quotes;
-- +
SELECT a.id FROM trades a JOIN quotes b ON a.k = b.k JOIN trades c ON c.k = b.k AND c.id <> a.id;
-- +
EXPLAIN SELECT id FROM trades WHERE k IS NOT DISTINCT FROM 'x';
