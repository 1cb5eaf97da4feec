//! Names of users and groups, from the text of `/etc/passwd` and `/etc/group`.

use std::collections::HashMap;

/// Users and groups that have a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Names {
    /// The names in two texts of the form of `passwd(5)` and `group(5)`: name, password and number, with colons between.
    /// Lines of another form are passed over, and of two entries with one name the first counts, as for the system.
    pub fn new(passwd: &str, group: &str) -> Self {
        Self { users: numbers(passwd), groups: numbers(group) }
    }

    /// The user with this name or number.
    pub fn user(&self, name: &str) -> Option<u32> {
        number(name).or_else(|| self.users.get(name).copied())
    }

    /// The group with this name or number.
    pub fn group(&self, name: &str) -> Option<u32> {
        number(name).or_else(|| self.groups.get(name).copied())
    }

    /// Name of a user, or its number where it has none.
    pub fn of_user(&self, uid: u32) -> String {
        // The shortest of several names for one number, so that it is always the same one.
        let names = self.users.iter().filter(|&(_, &number)| number == uid).map(|(name, _)| name);
        names.min_by_key(|name| (name.len(), *name)).cloned().unwrap_or_else(|| uid.to_string())
    }
}

fn number(text: &str) -> Option<u32> {
    // The largest number means "no user" to the system.
    text.parse().ok().filter(|&number| number != u32::MAX)
}

fn numbers(text: &str) -> HashMap<String, u32> {
    let mut found = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(number)) = (fields.next(), fields.next(), fields.next().and_then(number))
            && !name.is_empty()
        {
            found.entry(name.to_owned()).or_insert(number);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_users() {
        let names =
            Names::new("root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::\nbad\nbob:x:7:7::\n:x:9::\n", "lab:x:50:bob\n");
        assert_eq!((names.user("bob"), names.user("1234"), names.user("eve")), (Some(1000), Some(1234), None));
        assert_eq!((names.group("lab"), names.group("50"), names.group("bob")), (Some(50), Some(50), None));
        assert_eq!((names.of_user(1000), names.of_user(9)), ("bob".to_owned(), "9".to_owned()));
        assert_eq!((names.user("4294967295"), names.user("-1"), names.user("")), (None, None, None));
    }
}
