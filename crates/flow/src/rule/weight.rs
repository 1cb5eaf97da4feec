//! What a rule costs: units of a quota, and bytes of memory.

use super::Rule;
use crate::action::Action;
use crate::vni_map::Run;

/// Parts of a unit.
const PARTS: usize = 8;

/// What an action counts, in parts: what has memory of its own counts more.
fn parts(action: &Action) -> usize {
    match action {
        Action::EncapVxlan(_) | Action::VxlanPort(_) => 4,
        Action::Note(note) => 1 + note.len() / 32,
        Action::VniMap(map) => 1 + map.runs().len() / 2,
        _ => 1,
    }
}

/// What a rule with these actions counts in a quota: 1, and 1 more for each eight actions. A note counts as an action more for each
/// 32 bytes, `encap_vxlan` and `vxlan_port` as four, `vni_map` as one more for each two of its runs.
pub fn units(actions: &[Action]) -> usize {
    1 + actions.iter().map(parts).sum::<usize>() / PARTS
}

impl Rule {
    /// About how many bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        let own = |action: &Action| match action {
            Action::EncapVxlan(outer) => size_of_val(&**outer),
            Action::VxlanPort(port) => size_of_val(&**port),
            Action::Note(note) => note.len(),
            Action::VniMap(map) => size_of_val(&**map) + map.runs().len() * (size_of::<u32>() + size_of::<Run>()),
            _ => 0,
        };
        let actions = &self.spec.actions;
        size_of::<Self>()
            + self.counters.bytes()
            + self.plan.bytes()
            + size_of_val(&actions[..])
            + actions.iter().map(own).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_actions_are_one_unit_and_many_are_more() {
        assert_eq!(units(&[Action::Drop]), 1);
        assert_eq!(units(&vec![Action::PopVlan; 7]), 1);
        assert_eq!(units(&vec![Action::PopVlan; 8]), 2);
        assert_eq!(units(&vec![Action::PopVlan; 64]), 9);
        assert_eq!(units(&[Action::Note(vec![0; 256])]), 2);
    }

    #[test]
    fn bytes_follow_what_a_rule_has() {
        let rule = |text| Rule::new(crate::language::parse_rule(text).unwrap(), 1, 1, 2, 0).bytes();
        let (drop, many) = (rule("actions=drop"), rule("actions=queue:1,queue:2,queue:3,note:00112233"));
        assert!(drop > 500 && drop < 2000, "{drop}");
        assert_eq!(many - drop, 3 * size_of::<Action>() + 4);
    }
}
