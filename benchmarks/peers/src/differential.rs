//! Orders join customers in differential dataflow: one worker, native rows, upserts resolved by maps of the last rows.
//!
//! `differential FILE`: the file has the number of warm-up epochs, the number of epochs and the first rows of both tables, then
//! the upserts of both tables epoch by epoch. Prints the CPU seconds from upserts to the whole answer of the epochs after the
//! warm-up, how many of them the maps took, their changes, and rows and checksum of the answers of all epochs.

mod input;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use differential_dataflow::input::InputSession;
use input::{Columns, cpu_seconds};
use timely::dataflow::ProbeHandle;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Order = (i64, u64, String);
type Customer = (i64, u64, String);
type Last<Row> = HashMap<i64, Row, BuildHasherDefault<NumberHasher>>;

/// Hashes one number by a multiplication.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }

    fn write_i64(&mut self, number: i64) {
        let product = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }
}

/// One row of either table as it comes: primary key, second column, amount and word; no row where it is deleted.
type Upsert = (i64, Option<(i64, u64, String)>);

fn upserts(columns: &mut Columns) -> Vec<Upsert> {
    let count = columns.number() as usize;
    let (ids, seconds, amounts) = (columns.numbers(count), columns.numbers(count), columns.numbers(count));
    let (words, weights) = (columns.texts(count), columns.numbers(count));
    let rows = ids.into_iter().zip(seconds).zip(amounts).zip(words).zip(weights);
    rows.map(|((((id, second), amount), word), weight)| (id, (weight > 0).then_some((second, amount as u64, word)))).collect()
}

/// Turn upserts into retractions of the last rows and insertions.
fn resolve<Row: Clone>(
    upserts: Vec<Upsert>,
    last: &mut Last<Row>,
    row_of: impl Fn(i64, (i64, u64, String)) -> Row,
    changes: &mut Vec<(Row, isize)>,
) {
    for (id, columns) in upserts {
        let row = columns.map(|columns| row_of(id, columns));
        let before = match &row {
            Some(row) => last.insert(id, row.clone()),
            None => last.remove(&id),
        };
        changes.extend(before.map(|row| (row, -1)));
        changes.extend(row.map(|row| (row, 1)));
    }
}

/// The first eight bytes of a text as a number.
fn word_of(text: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = text.len().min(8);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    u64::from_le_bytes(bytes)
}

/// One number of a row as `benchmarks/peers/exchange.py` computes it, so that a sum over rows by weight tells bags of rows apart. The order of columns counts.
fn mixed<const N: usize>(columns: [u64; N]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut sum = 0_u64;
    for (at, column) in columns.into_iter().enumerate() {
        sum = sum.wrapping_add(column.wrapping_mul(FACTOR.wrapping_mul(2 * at as u64 + 1)));
    }
    sum ^= sum >> 32;
    sum = sum.wrapping_mul(FACTOR);
    sum ^ (sum >> 29)
}

fn main() {
    let mut columns = Columns::of_argument(1).expect("the input file is readable");
    let (warm_up, count) = (columns.number() as usize, columns.number() as usize);
    let epochs: Vec<_> = (0..=count).map(|_| (upserts(&mut columns), upserts(&mut columns))).collect();
    drop(columns);
    timely::execute_directly(move |worker| {
        let (mut orders, mut customers) = (InputSession::new(), InputSession::new());
        let probe = ProbeHandle::new();
        let (rows, checksum) = (Rc::new(Cell::new(0_i64)), Rc::new(Cell::new(0_u64)));
        let (rows_seen, checksum_seen) = (rows.clone(), checksum.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            orders
                .to_collection(scope)
                .join_map(customers.to_collection(scope), |key: &i64, order: &Order, customer: &Customer| {
                    (*key, order.clone(), customer.clone())
                })
                .inspect(move |((key, order, customer), _, weight)| {
                    let row = mixed([
                        order.0 as u64,
                        *key as u64,
                        order.1,
                        word_of(&order.2),
                        customer.0 as u64,
                        customer.1,
                        word_of(&customer.2),
                    ]);
                    rows_seen.set(rows_seen.get() + *weight as i64);
                    checksum_seen.set(checksum_seen.get().wrapping_add(row.wrapping_mul(*weight as u64)));
                })
                .probe_with(&probe);
        });
        let (mut last_orders, mut last_customers) = (Last::default(), Last::default());
        let (mut all_seconds, mut map_seconds, mut changes) = (0.0, 0.0, 0);
        for (number, (of_orders, of_customers)) in epochs.into_iter().enumerate() {
            let upserted = of_orders.len() + of_customers.len();
            let started = cpu_seconds();
            let (mut order_changes, mut customer_changes) = (Vec::new(), Vec::new());
            resolve(of_orders, &mut last_orders, |id, (key, amount, word)| (key, (id, amount, word)), &mut order_changes);
            resolve(of_customers, &mut last_customers, |id, columns| (id, columns), &mut customer_changes);
            let resolved = cpu_seconds();
            for (row, weight) in order_changes {
                orders.update(row, weight);
            }
            for (row, weight) in customer_changes {
                customers.update(row, weight);
            }
            // The first rows are epoch 0: neither measured nor in the checksum.
            let next = number as u64 + 1;
            orders.advance_to(next);
            orders.flush();
            customers.advance_to(next);
            customers.flush();
            worker.step_while(|| probe.less_than(&next));
            let ended = cpu_seconds();
            if number == 0 {
                rows.set(0);
                checksum.set(0);
            }
            if number > warm_up {
                all_seconds += ended - started;
                map_seconds += resolved - started;
                changes += upserted;
            }
        }
        let (rows, checksum) = (rows.get(), checksum.get());
        println!(
            "{{\"seconds\": {all_seconds}, \"map_seconds\": {map_seconds}, \"changes\": {changes}, \
             \"rows\": {rows}, \"checksum\": {checksum}}}"
        );
    });
}
