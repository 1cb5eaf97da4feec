//! Instances by the server name and the application's protocol that a client asks for.

use millrace_packet::parse::ClientHello;

/// Connections of one name or protocol, and who serves them. Without name and protocol it is every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRule {
    /// A host (`example.com`), or all hosts below one (`*.example.com`); letters of either case are the same.
    pub server_name: Option<String>,
    /// A protocol of the application (`h3`), which is somewhere in the client's list.
    pub protocol: Option<String>,
    /// The instances among which these connections are shared out, at least one.
    pub instances: Vec<u16>,
}

impl NameRule {
    /// Whether this client asks for it.
    pub fn matches(&self, hello: &ClientHello<'_>) -> bool {
        let name = match (&self.server_name, hello.server_name()) {
            (None, _) => true,
            (Some(wanted), Some(name)) => is_name(wanted.as_bytes(), name),
            (Some(_), None) => false,
        };
        name && self.protocol.as_ref().is_none_or(|wanted| hello.protocols().any(|name| name == wanted.as_bytes()))
    }
}

fn is_name(wanted: &[u8], name: &[u8]) -> bool {
    match wanted {
        // What is left has the dot, and something stands before it.
        [b'*', below @ ..] => name.len() > below.len() && name[name.len() - below.len()..].eq_ignore_ascii_case(below),
        wanted => name.eq_ignore_ascii_case(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (wanted, name, is) in [
            ("example.com", "example.com", true),
            ("example.com", "Example.COM", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "a.b.Example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "badexample.com", false),
        ] {
            assert_eq!(is_name(wanted.as_bytes(), name.as_bytes()), is, "{wanted} {name}");
        }
    }
}
