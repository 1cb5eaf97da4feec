//! Any bytes as requests of programs to the engine in the card, and as its answers to them.

use millrace_served::wire::{MOST_WORDS, Request, VERSION, Welcome, Words, qpn};
use std::hint::black_box;

/// One record as it is, and one that has a version and a kind in front of words that are often small, so that many of them are
/// requests. How many were.
pub fn rdma_served(input: &[u8]) -> u64 {
    one(input) + one(&shaped(input))
}

/// What is a request is written as the same bytes; an answer is taken apart as a program does it.
fn one(record: &[u8]) -> u64 {
    let Some(words) = Words::from_bytes(record) else { return 0 };
    if let Some(Ok(answer)) = words.clone().outcome() {
        black_box(Welcome::read(&mut answer.clone()));
        black_box(qpn(&mut answer.clone()));
        black_box(answer.clone().capabilities());
        black_box(answer.clone().attributes());
    }
    let Some(request) = Request::read(words) else { return 0 };
    assert_eq!(request.write().bytes(), record, "{request:?} was written in another way than it came");
    1
}

/// The first byte is the kind, the second the number of words. Each word is a byte that says how large it is, and its bytes.
fn shaped(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.iter().copied();
    let mut next = || bytes.next().unwrap_or(0);
    let (kind, count) = (next() % 26, usize::from(next()) % MOST_WORDS);
    let mut record = (u64::from(VERSION) << 32 | u64::from(kind)).to_le_bytes().to_vec();
    for _ in 0..count {
        let word = match next() % 8 {
            0 => u64::MAX,
            1 => u64::from_le_bytes([(); 8].map(|()| next())),
            2 => u64::from_le_bytes([next(), next(), next(), 0, 0, 0, 0, 0]),
            3 => u64::from(next()),
            small => small.into(),
        };
        record.extend(word.to_le_bytes());
    }
    record
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_run_of_rdma_served() {
        let found = short_run(super::rdma_served, 20_000);
        assert!(found > 200, "only {found} requests in 40,000 records");
    }

    #[test]
    fn a_greeting_is_a_request() {
        assert_eq!(super::one(&super::shaped(&[1, 0])), 1);
        assert_eq!(super::one(&super::shaped(&[1, 1])), 0, "with a word too many");
        assert_eq!(super::one(&super::shaped(&[0, 0])), 0, "an answer is none");
    }
}
