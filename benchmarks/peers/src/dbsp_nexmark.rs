//! Nexmark's q3, q4, q9 and q20 in DBSP: one worker, native rows, tables to which rows are only added.
//!
//! `dbsp_nexmark FILE QUERY KIND ANSWER`: the file has the number of epochs, then persons, auctions and bids epoch by epoch, with
//! the columns that no query reads where the kind is `whole` or `pruned`. Narrow and whole rows are kept as they are; pruned
//! ones lose what the query does not read before anything is kept. Prints the CPU seconds of all epochs but the first, from
//! rows to deltas. Writes the answer as it is in the end to the file ANSWER, a line of tab-separated values per row.

mod input;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::{env, fs};

use dbsp::algebra::F64;
use dbsp::operator::Max;
use dbsp::utils::{Tup2, Tup3, Tup4, Tup5, Tup6, Tup7, Tup8, Tup10};
use dbsp::{DBData, IndexedZSetReader, OrdIndexedZSet, OrdZSet, RootCircuit, Runtime, Stream, ZWeight};
use input::{Columns, cpu_seconds};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Rows<Row> = Stream<RootCircuit, OrdZSet<Row>>;
type Keyed<Row> = Stream<RootCircuit, OrdIndexedZSet<i64, Row>>;
type Epochs<Row> = Vec<Vec<Tup2<Row, ZWeight>>>;

/// Id, name, city, state, time; then mail, card and filling.
type NarrowPerson = Tup5<i64, String, String, String, i64>;
type WholePerson = Tup8<i64, String, String, String, i64, String, String, String>;
/// Id, item, seller, category, begin, end; then description, initial bid, reserve and filling.
type NarrowAuction = Tup6<i64, String, i64, i64, i64, i64>;
type WholeAuction = Tup10<i64, String, i64, i64, i64, i64, String, i64, i64, String>;
/// Auction, bidder, price, time; then channel, address and filling.
type NarrowBid = Tup4<i64, i64, i64, i64>;
type WholeBid = Tup7<i64, i64, i64, i64, String, String, String>;

/// A row that is read from the columns of a table.
trait Row: DBData {
    fn read(columns: &mut Columns, count: usize) -> Vec<Self>;
}

trait Person: Row {
    /// Id, name, city and state.
    fn read_columns(&self) -> (i64, &String, &String, &String);
}

trait Auction: Row {
    /// Id, item, seller, category, begin and end.
    fn read_columns(&self) -> (i64, &String, i64, i64, i64, i64);
}

trait Bid: Row {
    /// Auction, bidder, price and time.
    fn read_columns(&self) -> (i64, i64, i64, i64);
}

/// Read columns one after the other and make rows of them, a letter for the field and the reader of its column.
macro_rules! rows_of {
    ($row:ident, $($field:ident: $reader:ident),*) => {
        fn read(columns: &mut Columns, count: usize) -> Vec<Self> {
            $(let mut $field = columns.$reader(count).into_iter();)*
            (0..count).map(|_| $row($($field.next().expect("a value per row")),*)).collect()
        }
    };
}

impl Row for NarrowPerson {
    rows_of!(Tup5, a: numbers, b: texts, c: texts, d: texts, e: numbers);
}

impl Row for WholePerson {
    rows_of!(Tup8, a: numbers, b: texts, c: texts, d: texts, e: numbers, f: texts, g: texts, h: texts);
}

impl Row for NarrowAuction {
    rows_of!(Tup6, a: numbers, b: texts, c: numbers, d: numbers, e: numbers, f: numbers);
}

impl Row for WholeAuction {
    rows_of!(
        Tup10, a: numbers, b: texts, c: numbers, d: numbers, e: numbers, f: numbers, g: texts, h: numbers, i: numbers, j: texts
    );
}

impl Row for NarrowBid {
    rows_of!(Tup4, a: numbers, b: numbers, c: numbers, d: numbers);
}

impl Row for WholeBid {
    rows_of!(Tup7, a: numbers, b: numbers, c: numbers, d: numbers, e: texts, f: texts, g: texts);
}

impl Person for NarrowPerson {
    fn read_columns(&self) -> (i64, &String, &String, &String) {
        (self.0, &self.1, &self.2, &self.3)
    }
}

impl Person for WholePerson {
    fn read_columns(&self) -> (i64, &String, &String, &String) {
        (self.0, &self.1, &self.2, &self.3)
    }
}

impl Auction for NarrowAuction {
    fn read_columns(&self) -> (i64, &String, i64, i64, i64, i64) {
        (self.0, &self.1, self.2, self.3, self.4, self.5)
    }
}

impl Auction for WholeAuction {
    fn read_columns(&self) -> (i64, &String, i64, i64, i64, i64) {
        (self.0, &self.1, self.2, self.3, self.4, self.5)
    }
}

impl Bid for NarrowBid {
    fn read_columns(&self) -> (i64, i64, i64, i64) {
        (self.0, self.1, self.2, self.3)
    }
}

impl Bid for WholeBid {
    fn read_columns(&self) -> (i64, i64, i64, i64) {
        (self.0, self.1, self.2, self.3)
    }
}

const CATEGORY: i64 = 10;
const STATES: [&str; 3] = ["OR", "ID", "CA"];

type Q3 = Tup4<String, String, String, i64>;
type Q4 = Tup2<i64, F64>;
/// Id, item, seller, category; bidder, price, time.
type Q9 = Tup7<i64, String, i64, i64, i64, i64, i64>;
/// Auction, bidder, price, time; item, seller, category.
type Q20 = Tup7<i64, i64, i64, i64, String, i64, i64>;

fn q3<P: Person, A: Auction>(persons: Rows<P>, auctions: Rows<A>) -> Rows<Q3> {
    let near = persons.flat_map_index(|row| {
        let (id, _, _, state) = row.read_columns();
        STATES.contains(&state.as_str()).then(|| (id, row.clone()))
    });
    let sold = auctions.flat_map_index(|row| {
        let (_, _, seller, category, _, _) = row.read_columns();
        (category == CATEGORY).then(|| (seller, row.clone()))
    });
    near.join(&sold, |_, person, auction| {
        let (_, name, city, state) = person.read_columns();
        Tup4(name.clone(), city.clone(), state.clone(), auction.read_columns().0)
    })
}

fn q3_pruned<P: Person, A: Auction>(persons: Rows<P>, auctions: Rows<A>) -> Rows<Q3> {
    let near = persons.flat_map_index(|row| {
        let (id, name, city, state) = row.read_columns();
        STATES.contains(&state.as_str()).then(|| (id, Tup3(name.clone(), city.clone(), state.clone())))
    });
    let sold = auctions.flat_map_index(|row| {
        let (id, _, seller, category, _, _) = row.read_columns();
        (category == CATEGORY).then_some((seller, id))
    });
    near.join(&sold, |_, Tup3(name, city, state), id| Tup4(name.clone(), city.clone(), state.clone(), *id))
}

fn q4<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q4> {
    let prices = by_auction(auctions).join_index(&bid_on(bids), |id, auction, bid| {
        let (_, _, _, category, begin, end) = auction.read_columns();
        let (_, _, price, at) = bid.read_columns();
        (begin <= at && at <= end).then_some((Tup2(*id, category), price))
    });
    averages(prices)
}

fn q4_pruned<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q4> {
    let auctions = auctions.map_index(|row| {
        let (id, _, _, category, begin, end) = row.read_columns();
        (id, Tup3(category, begin, end))
    });
    let bids = bids.map_index(|row| {
        let (auction, _, price, at) = row.read_columns();
        (auction, Tup2(price, at))
    });
    averages(auctions.join_index(&bids, |id, Tup3(category, begin, end), Tup2(price, at)| {
        (begin <= at && at <= end).then_some((Tup2(*id, *category), *price))
    }))
}

/// The average over the auctions of a category of their highest prices.
fn averages(prices: Stream<RootCircuit, OrdIndexedZSet<Tup2<i64, i64>, i64>>) -> Rows<Q4> {
    prices
        .aggregate(Max)
        .map_index(|(Tup2(_, category), price)| (*category, *price))
        .aggregate_linear_postprocess(|price| Tup2(*price, 1_i64), |Tup2(sum, count)| F64::from(sum as f64 / count as f64))
        .map(|(category, average)| Tup2(*category, *average))
}

fn q9<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q9> {
    best(by_auction(auctions).join_index(&bid_on(bids), |id, auction, bid| {
        let (_, item, seller, category, begin, end) = auction.read_columns();
        let (_, bidder, price, at) = bid.read_columns();
        (begin <= at && at <= end).then(|| (Tup4(*id, item.clone(), seller, category), Tup3(price, -at, -bidder)))
    }))
}

fn q9_pruned<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q9> {
    let auctions = auctions.map_index(|row| {
        let (id, item, seller, category, begin, end) = row.read_columns();
        (id, Tup5(item.clone(), seller, category, begin, end))
    });
    let bids = bids.map_index(|row| {
        let (auction, bidder, price, at) = row.read_columns();
        (auction, Tup3(bidder, price, at))
    });
    best(auctions.join_index(&bids, |id, Tup5(item, seller, category, begin, end), Tup3(bidder, price, at)| {
        (begin <= at && at <= end).then(|| (Tup4(*id, item.clone(), *seller, *category), Tup3(*price, -at, -bidder)))
    }))
}

/// The highest bid of each auction: the first of equal ones, then that of the lowest bidder.
fn best(pairs: Stream<RootCircuit, OrdIndexedZSet<Tup4<i64, String, i64, i64>, Tup3<i64, i64, i64>>>) -> Rows<Q9> {
    pairs.aggregate(Max).map(|(Tup4(id, item, seller, category), Tup3(price, at, bidder))| {
        Tup7(*id, item.clone(), *seller, *category, -bidder, *price, -at)
    })
}

fn q20<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q20> {
    let sold = auctions.flat_map_index(|row| {
        let (id, _, _, category, _, _) = row.read_columns();
        (category == CATEGORY).then(|| (id, row.clone()))
    });
    sold.join(&bid_on(bids), |id, auction, bid| {
        let (_, item, seller, category, _, _) = auction.read_columns();
        let (_, bidder, price, at) = bid.read_columns();
        Tup7(*id, bidder, price, at, item.clone(), seller, category)
    })
}

fn q20_pruned<A: Auction, B: Bid>(auctions: Rows<A>, bids: Rows<B>) -> Rows<Q20> {
    let sold = auctions.flat_map_index(|row| {
        let (id, item, seller, category, _, _) = row.read_columns();
        (category == CATEGORY).then(|| (id, Tup3(item.clone(), seller, category)))
    });
    let bids = bids.map_index(|row| {
        let (auction, bidder, price, at) = row.read_columns();
        (auction, Tup3(bidder, price, at))
    });
    sold.join(&bids, |id, Tup3(item, seller, category), Tup3(bidder, price, at)| {
        Tup7(*id, *bidder, *price, *at, item.clone(), *seller, *category)
    })
}

fn by_auction<A: Auction>(auctions: Rows<A>) -> Keyed<A> {
    auctions.map_index(|row| (row.read_columns().0, row.clone()))
}

fn bid_on<B: Bid>(bids: Rows<B>) -> Keyed<B> {
    bids.map_index(|row| (row.read_columns().0, row.clone()))
}

/// Values of a row of an answer, tab-separated.
trait Line: DBData {
    fn line(&self) -> String;
}

impl Line for Q3 {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\t{}", self.0, self.1, self.2, self.3)
    }
}

impl Line for Q4 {
    fn line(&self) -> String {
        format!("{}\t{}", self.0, self.1)
    }
}

impl Line for Q9 {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\t{}\t{}\t{}\t{}", self.0, self.1, self.2, self.3, self.4, self.5, self.6)
    }
}

impl Line for Q20 {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\t{}\t{}\t{}\t{}", self.0, self.1, self.2, self.3, self.4, self.5, self.6)
    }
}

/// Run a query over the epochs of its two tables, print its figures and write its answer.
fn measure<L: DBData, R: DBData, Out: Line>(left: Epochs<L>, right: Epochs<R>, query: fn(Rows<L>, Rows<R>) -> Rows<Out>) {
    let (mut circuit, (to_left, to_right, output)) = Runtime::init_circuit(1, move |circuit| {
        let (left, to_left) = circuit.add_input_zset::<L>();
        let (right, to_right) = circuit.add_input_zset::<R>();
        Ok((to_left, to_right, query(left, right).output()))
    })
    .expect("the circuit is built");
    let (mut seconds, mut deltas) = (0.0, Vec::new());
    for (number, (mut of_left, mut of_right)) in left.into_iter().zip(right).enumerate() {
        let started = cpu_seconds();
        to_left.append(&mut of_left);
        to_right.append(&mut of_right);
        circuit.transaction().expect("the epoch is done");
        deltas.push(output.consolidate());
        if number > 0 {
            seconds += cpu_seconds() - started;
        }
    }
    let mut rows: BTreeMap<Out, ZWeight> = BTreeMap::new();
    for delta in &deltas {
        for (row, (), weight) in delta.iter() {
            *rows.entry(row).or_default() += weight;
        }
    }
    let mut answer = String::new();
    for (row, weight) in rows {
        for _ in 0..weight {
            writeln!(answer, "{}", row.line()).expect("memory takes a line");
        }
    }
    fs::write(env::args().nth(4).expect("the path of the answer is missing"), answer).expect("the answer is written");
    println!("{{\"seconds\": {seconds}}}");
    circuit.kill().expect("the worker stops");
}

/// Run the query that the arguments name on rows of these types.
fn measure_query<P: Person, A: Auction, B: Bid>(query: &str, is_pruned: bool, mut columns: Columns) {
    let (mut persons, mut auctions, mut bids) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..columns.number() {
        persons.push(epoch::<P>(&mut columns));
        auctions.push(epoch::<A>(&mut columns));
        bids.push(epoch::<B>(&mut columns));
    }
    drop(columns);
    match (query, is_pruned) {
        ("q3", false) => measure(persons, auctions, q3::<P, A>),
        ("q3", true) => measure(persons, auctions, q3_pruned::<P, A>),
        ("q4", false) => measure(auctions, bids, q4::<A, B>),
        ("q4", true) => measure(auctions, bids, q4_pruned::<A, B>),
        ("q9", false) => measure(auctions, bids, q9::<A, B>),
        ("q9", true) => measure(auctions, bids, q9_pruned::<A, B>),
        ("q20", false) => measure(auctions, bids, q20::<A, B>),
        ("q20", true) => measure(auctions, bids, q20_pruned::<A, B>),
        _ => panic!("the query {query} is unknown"),
    }
}

fn epoch<R: Row>(columns: &mut Columns) -> Vec<Tup2<R, ZWeight>> {
    let count = columns.number() as usize;
    R::read(columns, count).into_iter().map(|row| Tup2(row, 1)).collect()
}

fn main() {
    let columns = Columns::of_argument(1).expect("the input file is readable");
    let query = env::args().nth(2).expect("the name of the query is missing");
    match env::args().nth(3).as_deref() {
        Some("narrow") => measure_query::<NarrowPerson, NarrowAuction, NarrowBid>(&query, false, columns),
        Some("whole") => measure_query::<WholePerson, WholeAuction, WholeBid>(&query, false, columns),
        Some("pruned") => measure_query::<WholePerson, WholeAuction, WholeBid>(&query, true, columns),
        kind => panic!("the kind of rows {kind:?} is unknown"),
    }
}
