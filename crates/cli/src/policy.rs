//! What the options of `millrace card` say about others: grants, quotas, users and groups.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use millrace_abi::access::{Grant, Names};
use millrace_abi::name::CardOptions;
use millrace_driver::Policy;
use millrace_tool::failure::Failure;

use crate::privileges::Plan;

/// Largest file that an option names, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Who else may use the card, and how much of it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Other users")]
pub struct PolicyArgs {
    /// Give rights to others, such as user:bob=use:rx0,tx0 or group:lab=use:all+configure:rules; may be repeated
    #[arg(long, value_name = "WHO=RIGHTS")]
    grant: Vec<String>,
    /// Grants from a file, one in each line
    #[arg(long, value_name = "FILE")]
    grants: Option<PathBuf>,
    /// Let only this group connect, beside the user who runs the card
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Most that each other user may have, such as queues=8,memory=1G; may be repeated
    #[arg(long, value_name = "KEY=VALUE,...")]
    quota: Vec<String>,
    /// Become this user when ports and socket are open; takes root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Keep all privileges of root, so that any kind of port can be plugged in later
    #[arg(long, conflicts_with = "user")]
    keep_privileges: bool,
}

impl PolicyArgs {
    /// The grants and quotas that are given one by one.
    pub fn given(&self) -> Result<Policy, Failure> {
        let wrong = |text: String| Failure::Usage(text);
        let mut policy = Policy::closed();
        for text in &self.grant {
            let grant = Grant::parse(text, &policy.names);
            grant.and_then(|grant| policy.access.add(grant)).map_err(|error| wrong(format!("--grant: {error}")))?;
        }
        for text in &self.quota {
            policy.quota.set(text).map_err(|error| wrong(format!("--quota: {error}")))?;
        }
        Ok(policy)
    }

    /// What they say.
    pub fn read(&self) -> Result<(Policy, Plan), Failure> {
        let wrong = |text: String| Failure::Usage(text);
        let mut policy = self.given()?;
        if let Some(path) = &self.grants {
            let text = read_file("--grants", path)?;
            policy
                .access
                .add_lines(&text, &policy.names)
                .map_err(|(line, error)| wrong(format!("--grants {}, line {line}: {error}", path.display())))?;
        }
        let granted = !policy.access.grants().is_empty();
        if self.group.is_some() && !granted {
            let text = "--group lets others connect, but nothing is granted to them; add for example \
                        --grant group:NAME=use:rx0,tx0";
            return Err(wrong(text.to_owned()));
        }
        let plan = Plan {
            user: self.user.as_deref().map(|name| user(name, &policy.names)).transpose()?,
            group: self.group.as_deref().map(|name| group(name, &policy.names)).transpose()?,
            everyone: granted && self.group.is_none(),
            keep: self.keep_privileges,
        };
        Ok((policy, plan))
    }
}

/// Refuses grants of queues that the card does not have.
pub fn check(policy: &Policy, options: &CardOptions) -> Result<(), Failure> {
    let Some(queue) = policy.access.beyond(options.rx_queues, options.tx_queues) else { return Ok(()) };
    let has = format!("{} RX and {} TX queues, numbered from 0", options.rx_queues, options.tx_queues);
    Err(Failure::Usage(format!("--grant: {queue} is granted, but the card has {has}; see --queues")))
}

fn user(name: &str, names: &Names) -> Result<(u32, u32), Failure> {
    let wrong = |text: &str| Failure::Usage(format!("--user {name}: {text}"));
    let uid = names.user(name).ok_or_else(|| wrong("/etc/passwd has no such user; a number needs no name"))?;
    if !rustix::process::geteuid().is_root() {
        return Err(wrong("only root can become another user; start the card as that user instead"));
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let field = |line: &str, at| line.split(':').nth(at).and_then(|text: &str| text.parse::<u32>().ok());
    let gid = passwd.lines().find(|line| field(line, 2) == Some(uid)).and_then(|line| field(line, 3));
    Ok((uid, gid.unwrap_or(uid)))
}

fn group(name: &str, names: &Names) -> Result<u32, Failure> {
    let text = || format!("--group {name}: /etc/group has no such group; a number needs no name");
    names.group(name).ok_or_else(|| Failure::Usage(text()))
}

/// The text of the file that an option names; of a regular one, because others can make one wait, and of a bounded size.
pub fn read_file(option: &str, path: &Path) -> Result<String, Failure> {
    let failed = |source| Failure::File { doing: "cannot read", path: path.to_owned(), source };
    let wrong = |text: String| Failure::Usage(format!("{option} {}: {text}", path.display()));
    let kind = std::fs::metadata(path).map_err(failed)?;
    if !kind.is_file() {
        return Err(wrong("not a regular file".to_owned()));
    }
    let mut text = String::new();
    let mut file = std::fs::File::open(path).map_err(failed)?.take(MAX_FILE + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(wrong(format!("more than {} KiB", MAX_FILE >> 10)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: PolicyArgs) -> String {
        args.read().map(|_| "fine".to_owned()).unwrap_or_else(|failure| failure.to_string())
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        let grants = |text: &str| PolicyArgs { grant: vec![text.to_owned()], ..PolicyArgs::default() };
        assert!(read(grants("root=admin")).contains("user:NAME"));
        assert!(read(grants("user:nobody-of-that-name=admin")).contains("/etc/passwd has no user"));
        let quota = PolicyArgs { quota: vec!["wood=1".to_owned()], ..PolicyArgs::default() };
        assert!(read(quota).contains("there are connections, queues"));
        let user = PolicyArgs { user: Some("nobody-of-that-name".to_owned()), ..PolicyArgs::default() };
        assert!(read(user).contains("/etc/passwd has no such user"));
        let group = PolicyArgs { group: Some("none-of-that-name".to_owned()), ..grants("everyone=use:all") };
        assert!(read(group).contains("/etc/group has no such group"));
        let alone = PolicyArgs { group: Some("0".to_owned()), ..PolicyArgs::default() };
        assert!(read(alone).contains("nothing is granted"));
    }

    #[test]
    fn grants_come_from_regular_files_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grants");
        let from = |path: &Path| read(PolicyArgs { grants: Some(path.to_owned()), ..PolicyArgs::default() });
        std::fs::write(&path, "# lab\neveryone=use:rx0\n").unwrap();
        assert_eq!(from(&path), "fine");
        std::fs::write(&path, "everyone=use:rx0\neveryone=fly\n").unwrap();
        assert!(from(&path).contains("line 2: grant \"everyone=fly\", at byte 9"), "{}", from(&path));
        std::fs::write(&path, "#".repeat(70_000)).unwrap();
        assert!(from(&path).contains("more than 64 KiB"));
        assert!(from(folder.path()).contains("not a regular file"));
        assert!(from(Path::new("/dev/zero")).contains("not a regular file"));
    }

    #[test]
    fn queues_that_the_card_does_not_have_are_refused() {
        let (policy, plan) =
            PolicyArgs { grant: vec!["everyone=use:rx9".to_owned()], ..PolicyArgs::default() }.read().unwrap();
        let said = check(&policy, &CardOptions::default()).unwrap_err().to_string();
        assert!(said.contains("rx9 is granted"), "{said}");
        assert!(plan.everyone && plan.group.is_none());
    }
}
