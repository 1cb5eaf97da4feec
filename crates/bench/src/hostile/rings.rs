//! Rings that cost the card's worker as much as they can, by name, and an honest one to compare them with.
//!
//! Those of Medusa, the honest one too, need next to no processor time of their own: the ring stays as it is, and only the
//! doorbell moves. So what a bystander feels on a small machine is the card, and not a fight for a core.

mod calypte;
mod dd;
mod medusa;
mod round;
mod sze;

use std::path::Path;

use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;

use super::attack::Attack;

/// A kind of ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name on the command line and in results.
    pub name: &'static str,
    /// The engine of its queues.
    pub engine: Engine,
}

const fn hostile(name: &'static str, engine: Engine) -> Case {
    Case { name, engine }
}

/// What a good program does, at full speed: the one ring that is not hostile.
pub const HONEST: Case = Case { name: "honest", engine: Engine::Medusa };

/// The hostile ones.
pub const CASES: [Case; 12] = [
    hostile("medusa-rx-no-fit", Engine::Medusa),
    hostile("medusa-rx-upper", Engine::Medusa),
    hostile("medusa-tx-endless", Engine::Medusa),
    hostile("medusa-tx-chains", Engine::Medusa),
    hostile("medusa-tx-upper", Engine::Medusa),
    hostile("sze-zero", Engine::Sze),
    hostile("sze-tiny", Engine::Sze),
    hostile("sze-jumps", Engine::Sze),
    hostile("calypte-zero", Engine::Calypte),
    hostile("calypte-random", Engine::Calypte),
    hostile("dd-tx-zero", Engine::Dd),
    hostile("dd-rx-no-fit", Engine::Dd),
];

/// Opens such rings on the pairs `indices` of a card.
pub fn attack(path: &Path, indices: &[u32], name: Option<&str>) -> Result<Box<dyn Attack>, Failure> {
    let names = || format!("honest, flood, {}", CASES.map(|case| case.name).join(", "));
    let name = name.ok_or_else(|| Failure::Usage(format!("--case says which rings: {}", names())))?;
    Ok(match name {
        "honest" => medusa::pairs(path, indices, medusa::honest, medusa::honest)?,
        "medusa-rx-no-fit" => medusa::pairs(path, indices, medusa::no_fit, medusa::honest)?,
        "medusa-rx-upper" => medusa::pairs(path, indices, medusa::upper, medusa::honest)?,
        "medusa-tx-endless" => medusa::senders(path, indices, medusa::endless)?,
        "medusa-tx-chains" => medusa::senders(path, indices, medusa::chains)?,
        "medusa-tx-upper" => medusa::senders(path, indices, medusa::upper)?,
        // Half of a good program: full TX rings whose frames nobody receives.
        "flood" => medusa::senders(path, indices, medusa::honest)?,
        "sze-zero" => sze::senders(path, indices, sze::Pattern::Zero)?,
        "sze-tiny" => sze::senders(path, indices, sze::Pattern::Tiny)?,
        "sze-jumps" => sze::senders(path, indices, sze::Pattern::Jumps)?,
        "calypte-zero" => calypte::senders(path, indices, false)?,
        "calypte-random" => calypte::senders(path, indices, true)?,
        "dd-tx-zero" => dd::senders(path, indices)?,
        "dd-rx-no-fit" => dd::pairs(path, indices)?,
        other => return Err(Failure::Usage(format!("--case {other}: there are {}", names()))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_hostile_rings_and_every_name_is_known() {
        for engine in Engine::ALL {
            assert!(CASES.iter().any(|case| case.engine == engine), "{engine}");
        }
        let nowhere = Path::new("/nowhere");
        let unknown = |name| matches!(attack(nowhere, &[1], name), Err(Failure::Usage(_)));
        assert!(unknown(Some("no-such-ring")) && unknown(None));
        // A name of the list gets as far as the connection.
        assert!([HONEST].iter().chain(&CASES).all(|case| !unknown(Some(case.name))));
    }
}
