-- Source: Timeplus, "Bidirectional Join". `+` begins a statement that is planned, `!CODE` one that is refused with that code.
-- +
CREATE MUTABLE STREAM left_mu (
    i  int,
    k  string,
    k1 string
)
PRIMARY KEY (k, k1);
-- +
CREATE MUTABLE STREAM right_mu (
    ii  int,
    kk  string,
    kk1 string
)
PRIMARY KEY (kk, kk1);
-- +
SELECT * FROM left_mu JOIN right_mu ON left_mu.k = right_mu.kk;
-- +
SELECT *, _tp_delta
FROM left_mu
JOIN right_mu
ON left_mu.k = right_mu.kk
EMIT CHANGELOG;
-- +
SELECT
    count(),
    min(i), max(i), avg(i),
    min(ii), max(ii), avg(ii)
FROM left_mu
JOIN right_mu
ON left_mu.k = right_mu.kk;
-- +
INSERT INTO left_mu(i, k, k1) VALUES (1, 'a', 'b');
-- +
INSERT INTO right_mu(ii, kk, kk1) VALUES (11, 'a', 'bb');
-- +
SELECT
    count(),
    min(i), max(i), avg(i),
    min(ii), max(ii), avg(ii)
FROM table(left_mu) AS left_mu
JOIN table(right_mu) AS right_mu
ON left_mu.k = right_mu.kk;
-- +
SELECT *
FROM left_mu
JOIN right_mu
ON left_mu.k = right_mu.kk
SETTINGS default_hash_join = 'hybrid';
-- +
SELECT k, k1, kk, kk1, count()
FROM left_mu
JOIN right_mu
ON left_mu.k = right_mu.kk
GROUP BY k, k1, kk, kk1
SETTINGS default_hash_join='hybrid', default_hash_table='hybrid';
-- +
CREATE STREAM left_append(i int, k string);
-- +
CREATE STREAM right_append(ii int, kk string);
-- +
SELECT * FROM
left_append JOIN  right_append
ON left_append.k = right_append.kk
SETTINGS join_max_buffered_bytes=102400000;
-- +
INSERT INTO left_append(i, k) VALUES (1, 'a');
-- +
INSERT INTO right_append(ii, kk) VALUES (22, 'a');
-- !UNKNOWN_COLUMN as printed: the values are names of nothing, and the stream is called right_mu
INSERT INTO right_mu VALUES (k1, kk5, v55);
-- +
SELECT * FROM left_mu LEFT JOIN right_mu ON left_mu.k = right_mu.kk;
-- +
SELECT * FROM left_mu RIGHT JOIN right_mu ON left_mu.k = right_mu.kk;
-- +
SELECT * FROM left_mu INNER JOIN right_mu ON left_mu.k = right_mu.kk;
-- +
SELECT * FROM left_mu FULL JOIN right_mu ON left_mu.k = right_mu.kk;
