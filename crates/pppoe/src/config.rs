//! What a client is to do.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A way to say who we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The password itself (RFC 1334).
    Pap,
    /// A hash of it and of a challenge, by MD5 (RFC 1994).
    Chap,
    /// Microsoft's, in which the other side proves that it knows the password, too (RFC 2759).
    MsChapV2,
}

impl Method {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::MsChapV2, Self::Chap, Self::Pap];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pap => "PAP",
            Self::Chap => "CHAP",
            Self::MsChapV2 => "MS-CHAPv2",
        })
    }
}

impl FromStr for Method {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|method| method.to_string().replace('-', "").eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("there is no {text}; there are pap, chap and mschapv2"))
    }
}

/// A password: not shown, and not compared.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who we are.
    pub user: String,
    /// How we prove it.
    pub password: Secret,
    /// In which ways we may be asked, the best first. With [`Method::Pap`] in it, whoever answers first learns the password.
    pub methods: Vec<Method>,
    /// Which service; none is any.
    pub service: Option<String>,
    /// The name of the access concentrator; none is any.
    pub ac: Option<String>,
    /// The largest packet that we take, in bytes: 576 to 9000; what is above [`USUAL_MTU`](crate::USUAL_MTU) is asked for by RFC 4638, and the interface
    /// needs an MTU of 8 bytes more.
    pub mru: u16,
    /// Whether IPv4 is wanted.
    pub ipv4: bool,
    /// Whether IPv6 is wanted.
    pub ipv6: bool,
    /// How often the other side is asked whether it is there.
    pub echo_interval: Duration,
    /// How many times in a row it may leave that unanswered.
    pub echo_failures: u8,
    /// How long to wait before the first attempt after a session; doubled each time.
    pub retry_first: Duration,
    /// How long to wait at most.
    pub retry_most: Duration,
    /// How long an attempt may take, from the session on.
    pub setup: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            user: String::new(),
            password: Secret::default(),
            methods: Method::ALL.to_vec(),
            service: None,
            ac: None,
            mru: crate::USUAL_MTU,
            ipv4: true,
            ipv6: true,
            echo_interval: Duration::from_secs(10),
            echo_failures: 3,
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_secs(60),
            setup: Duration::from_secs(60),
        }
    }
}

/// What cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Does not fit into a message of PAP.
    #[error("the {0} has more than 255 bytes")]
    TooLong(&'static str),
    /// Does not fit into a frame of discovery.
    #[error("the name of the {0} has more than 200 bytes")]
    NameTooLong(&'static str),
    /// A size that nobody can use.
    #[error("an MRU of {0} bytes: it is from 576 to 9000")]
    Mru(u16),
    /// Nothing is wanted.
    #[error("neither IPv4 nor IPv6")]
    NoNetwork,
    /// Would never stop.
    #[error("echo requests, and attempts, need an interval and a number above 0")]
    Interval,
}

impl Config {
    /// Whether that can be.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let long = |text: Option<&str>, most| text.is_some_and(|text| text.len() > most);
        if long(Some(&self.user), 255) {
            return Err(ConfigError::TooLong("user name"));
        }
        if self.password.bytes().len() > 255 {
            return Err(ConfigError::TooLong("password"));
        }
        if long(self.service.as_deref(), 200) {
            return Err(ConfigError::NameTooLong("service"));
        }
        if long(self.ac.as_deref(), 200) {
            return Err(ConfigError::NameTooLong("access concentrator"));
        }
        if !(576..=9000).contains(&self.mru) {
            return Err(ConfigError::Mru(self.mru));
        }
        if !self.ipv4 && !self.ipv6 {
            return Err(ConfigError::NoNetwork);
        }
        let times = [self.echo_interval, self.retry_first, self.retry_most, self.setup];
        if self.echo_failures == 0 || times.iter().any(Duration::is_zero) {
            return Err(ConfigError::Interval);
        }
        Ok(())
    }

    /// Whether more than [`USUAL_MTU`](crate::USUAL_MTU) is wanted.
    pub(crate) fn wants_more(&self) -> bool {
        self.mru > crate::USUAL_MTU
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let usual = Config::default;
        assert_eq!(usual().check(), Ok(()));
        let wrong = [
            (Config { user: "x".repeat(256), ..usual() }, ConfigError::TooLong("user name")),
            (Config { password: vec![7; 256].into(), ..usual() }, ConfigError::TooLong("password")),
            (Config { ac: Some("x".repeat(201)), ..usual() }, ConfigError::NameTooLong("access concentrator")),
            (Config { service: Some("x".repeat(201)), ..usual() }, ConfigError::NameTooLong("service")),
            (Config { mru: 575, ..usual() }, ConfigError::Mru(575)),
            (Config { ipv4: false, ipv6: false, ..usual() }, ConfigError::NoNetwork),
            (Config { echo_failures: 0, ..usual() }, ConfigError::Interval),
            (Config { retry_first: Duration::ZERO, ..usual() }, ConfigError::Interval),
        ];
        for (config, error) in wrong {
            assert_eq!(config.check(), Err(error));
        }
    }

    #[test]
    fn methods_have_names_and_passwords_are_not_shown() {
        let names = ["mschapv2", "CHAP", "pap"].map(|name| name.parse::<Method>().unwrap());
        assert_eq!(names, Method::ALL);
        assert!("eap".parse::<Method>().is_err());
        let config = Config { password: "geheim".into(), ..Config::default() };
        assert!(!format!("{config:?}").contains("geheim") && !format!("{config:?}").contains("103"));
    }
}
