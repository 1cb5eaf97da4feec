//! How much one user may have of what all share.

use core::fmt;
use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Connections to the card.
    Connections,
    /// Open queues; a shared one for each opener.
    Queues,
    /// Rings of direct writers of shared TX queues.
    Rings,
    /// Mappings of a program's own memory for the card.
    Mappings,
    /// Bytes of those mappings: addresses of the card's process, used or not.
    Mapped,
    /// Bytes of memory that the driver allocates for queues.
    Memory,
    /// Fds that the card keeps for a program.
    Fds,
    /// Mappings of the card's process that come of all this: the system has a limit for them (`vm.max_map_count`).
    Areas,
    /// Rules in the flow table, and those of transactions that are being sent.
    Rules,
}

/// All that is counted, in the order of [`Amounts`].
pub const RESOURCES: [Resource; 9] = [
    Resource::Connections,
    Resource::Queues,
    Resource::Rings,
    Resource::Mappings,
    Resource::Mapped,
    Resource::Memory,
    Resource::Fds,
    Resource::Areas,
    Resource::Rules,
];

impl Resource {
    /// Whether it is counted in bytes.
    pub fn is_bytes(self) -> bool {
        matches!(self, Resource::Mapped | Resource::Memory)
    }

    /// The word in `--quota` and in output.
    pub const fn word(self) -> &'static str {
        match self {
            Resource::Connections => "connections",
            Resource::Queues => "queues",
            Resource::Rings => "rings",
            Resource::Mappings => "mappings",
            Resource::Mapped => "mapped",
            Resource::Memory => "memory",
            Resource::Fds => "fds",
            Resource::Areas => "areas",
            Resource::Rules => "rules",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts([u64; RESOURCES.len()]);

impl Amounts {
    /// The same amount of everything.
    pub const fn of_each(amount: u64) -> Self {
        Self([amount; RESOURCES.len()])
    }

    /// These, with another amount of one resource.
    #[must_use]
    pub const fn with(mut self, resource: Resource, amount: u64) -> Self {
        self.0[resource as usize] = amount;
        self
    }

    /// How much of one resource.
    pub const fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// Adds the amounts of another.
    pub fn add(&mut self, more: &Amounts) {
        self.0.iter_mut().zip(more.0).for_each(|(mine, more)| *mine = mine.saturating_add(more));
    }

    /// Takes the amounts of another away.
    pub fn sub(&mut self, less: &Amounts) {
        self.0.iter_mut().zip(less.0).for_each(|(mine, less)| *mine = mine.saturating_sub(less));
    }
}

/// What one user other than the owner of the card may have at most, all processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The limits.
    pub limits: Amounts,
}

impl Default for Quota {
    fn default() -> Self {
        let limits = Amounts::of_each(0)
            .with(Resource::Connections, 128)
            .with(Resource::Queues, 512)
            .with(Resource::Rings, 128)
            .with(Resource::Mappings, 1024)
            .with(Resource::Mapped, 256 << 30)
            .with(Resource::Memory, 8 << 30)
            .with(Resource::Fds, 2048)
            .with(Resource::Areas, 4096)
            .with(Resource::Rules, 1 << 17);
        Self { limits }
    }
}

/// A quota that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quota {part:?}: {what}")]
pub struct QuotaError {
    /// The part that is wrong.
    pub part: String,
    /// What would be right.
    pub what: String,
}

impl Quota {
    /// Sets limits from text: `queues=8,memory=1G`.
    ///
    /// # Errors
    /// [`QuotaError`], with the words and the form that there are.
    pub fn set(&mut self, text: &str) -> Result<(), QuotaError> {
        for part in text.split(',') {
            let failed = |what: String| QuotaError { part: part.chars().take(60).collect(), what };
            let words = || RESOURCES.map(Resource::word).join(", ");
            let Some((word, value)) = part.split_once('=') else {
                return Err(failed(format!("KEY=VALUE is wanted; keys are {}", words())));
            };
            let resource = RESOURCES.into_iter().find(|resource| resource.word() == word);
            let resource = resource.ok_or_else(|| failed(format!("{word:?} is no quota; there are {}", words())))?;
            let amount = amount(value, resource.is_bytes()).ok_or_else(|| {
                let units = if resource.is_bytes() { " of bytes; K, M, G and T allowed" } else { "" };
                failed(format!("{value:?} is not a whole number{units}"))
            })?;
            self.limits = self.limits.with(resource, amount);
        }
        Ok(())
    }
}

fn amount(text: &str, bytes: bool) -> Option<u64> {
    let factor = match text.as_bytes().last()? {
        b'K' if bytes => 1 << 10,
        b'M' if bytes => 1 << 20,
        b'G' if bytes => 1 << 30,
        b'T' if bytes => 1 << 40,
        _ => 1,
    };
    let digits = if factor == 1 { text } else { &text[..text.len() - 1] };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_set_by_word_and_the_others_stay() {
        let mut quota = Quota::default();
        quota.set("queues=2,memory=64M").unwrap();
        quota.set("mapped=1T,connections=0").unwrap();
        assert_eq!((quota.limits.of(Resource::Queues), quota.limits.of(Resource::Memory)), (2, 64 << 20));
        assert_eq!((quota.limits.of(Resource::Mapped), quota.limits.of(Resource::Connections)), (1 << 40, 0));
        assert_eq!(quota.limits.of(Resource::Rings), Quota::default().limits.of(Resource::Rings));
    }

    #[test]
    fn what_is_no_quota_is_refused_with_what_is() {
        for (text, what) in [
            ("", "KEY=VALUE"),
            ("queues", "KEY=VALUE"),
            ("wood=1", "there are connections, queues, rings, mappings, mapped, memory, fds"),
            ("queues=1M", "not a whole number"),
            ("queues=-1", "not a whole number"),
            ("memory=1P", "K, M, G and T"),
            ("memory=M", "K, M, G and T"),
            ("memory=99999999999999999999", "not a whole number"),
            ("memory=99999999T", "not a whole number"),
            ("queues=1,,rings=2", "KEY=VALUE"),
        ] {
            let error = Quota::default().set(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn every_resource_has_its_place() {
        for (at, resource) in RESOURCES.into_iter().enumerate() {
            assert_eq!(resource as usize, at);
            assert_eq!(Amounts::default().with(resource, 7).of(resource), 7);
        }
    }
}
