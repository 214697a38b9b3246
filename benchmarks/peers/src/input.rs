//! What both programs read and print: columns from a file, CPU seconds, one line of figures.
//!
//! A file is a sequence of blocks of 8-byte little-endian words, as `benchmarks/peers/exchange.py` writes them. A table is its
//! number of rows, then its columns: numbers as one word a row (doubles by their bits, times as microseconds), texts as
//! their lengths and then their bytes without gaps.

use std::{env, fs, io};

/// CPU seconds that all threads of this process have used.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "the system has no clock of a process");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The words of an input file, in order.
pub struct Columns {
    bytes: Vec<u8>,
    at: usize,
}

impl Columns {
    /// Read the file that is the argument of this number.
    pub fn of_argument(number: usize) -> io::Result<Self> {
        let path = env::args().nth(number).expect("the path of an input file is missing");
        Ok(Self { bytes: fs::read(path)?, at: 0 })
    }

    /// The next word.
    pub fn number(&mut self) -> i64 {
        i64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    /// The next column of numbers.
    pub fn numbers(&mut self, count: usize) -> Vec<i64> {
        let words = self.take(8 * count).chunks_exact(8);
        words.map(|word| i64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
    }

    /// The next column of texts.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        let lengths = self.numbers(count);
        lengths.into_iter().map(|length| String::from_utf8(self.take(length as usize).to_vec()).expect("UTF-8")).collect()
    }

    fn take(&mut self, count: usize) -> &[u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }
}
