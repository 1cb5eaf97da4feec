//! Why a message is refused: type and code (OpenFlow 1.3.5, section 7.4.4), by the names of the specification.

/// A type and a code of an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The type; 0xffff: the code is one of an experimenter.
    pub kind: u16,
    /// The code.
    pub code: u16,
}

/// Type of errors of experimenters.
pub const EXPERIMENTER: u16 = 0xffff;

macro_rules! refusals {
    ($($module:ident $kind:literal $about:literal: $($name:ident $code:literal),+;)*) => {
        $(
            #[doc = concat!($about, " is refused.")]
            pub mod $module {
                use super::Refusal;
                $(
                    #[doc = concat!("Type ", $kind, ", code ", $code, ".")]
                    pub const $name: Refusal = Refusal { kind: $kind, code: $code };
                )+
            }
        )*

        impl Refusal {
            /// What it is about, and its name in the specification, such as `("request", "BAD_LEN")`.
            pub fn name(self) -> Option<(&'static str, &'static str)> {
                match (self.kind, self.code) {
                    $($(($kind, $code) => Some((stringify!($module), stringify!($name))),)+)*
                    _ => None,
                }
            }
        }
    };
}

refusals! {
    hello 0 "The versions of the two ends": INCOMPATIBLE 0, EPERM 1;
    request 1 "The message": BAD_VERSION 0, BAD_TYPE 1, BAD_MULTIPART 2, BAD_EXPERIMENTER 3, BAD_EXP_TYPE 4, EPERM 5, BAD_LEN 6, BUFFER_EMPTY 7, BUFFER_UNKNOWN 8, BAD_TABLE_ID 9, IS_SLAVE 10, BAD_PORT 11, BAD_PACKET 12, MULTIPART_BUFFER_OVERFLOW 13;
    action 2 "An action": BAD_TYPE 0, BAD_LEN 1, BAD_EXPERIMENTER 2, BAD_EXP_TYPE 3, BAD_OUT_PORT 4, BAD_ARGUMENT 5, EPERM 6, TOO_MANY 7, BAD_QUEUE 8, BAD_OUT_GROUP 9, MATCH_INCONSISTENT 10, UNSUPPORTED_ORDER 11, BAD_TAG 12, BAD_SET_TYPE 13, BAD_SET_LEN 14, BAD_SET_ARGUMENT 15;
    instruction 3 "An instruction": UNKNOWN_INST 0, UNSUP_INST 1, BAD_TABLE_ID 2, UNSUP_METADATA 3, UNSUP_METADATA_MASK 4, BAD_EXPERIMENTER 5, BAD_EXP_TYPE 6, BAD_LEN 7, EPERM 8;
    matching 4 "A match": BAD_TYPE 0, BAD_LEN 1, BAD_TAG 2, BAD_DL_ADDR_MASK 3, BAD_NW_ADDR_MASK 4, BAD_WILDCARDS 5, BAD_FIELD 6, BAD_VALUE 7, BAD_MASK 8, BAD_PREREQ 9, DUP_FIELD 10, EPERM 11;
    flow_mod 5 "A change of flow entries": UNKNOWN 0, TABLE_FULL 1, BAD_TABLE_ID 2, OVERLAP 3, EPERM 4, BAD_TIMEOUT 5, BAD_COMMAND 6, BAD_FLAGS 7;
    group_mod 6 "A change of groups": GROUP_EXISTS 0, INVALID_GROUP 1, WEIGHT_UNSUPPORTED 2, OUT_OF_GROUPS 3, OUT_OF_BUCKETS 4, CHAINING_UNSUPPORTED 5, WATCH_UNSUPPORTED 6, LOOP 7, UNKNOWN_GROUP 8, CHAINED_GROUP 9, BAD_TYPE 10, BAD_COMMAND 11, BAD_BUCKET 12, BAD_WATCH 13, EPERM 14;
    port_mod 7 "A change of a port": BAD_PORT 0, BAD_HW_ADDR 1, BAD_CONFIG 2, BAD_ADVERTISE 3, EPERM 4;
    table_mod 8 "A change of a table": BAD_TABLE 0, BAD_CONFIG 1, EPERM 2;
    queue_op 9 "A question about queues": BAD_PORT 0, BAD_QUEUE 1, EPERM 2;
    switch_config 10 "A change of the configuration": BAD_FLAGS 0, BAD_LEN 1, EPERM 2;
    role_request 11 "A change of the role": STALE 0, UNSUP 1, BAD_ROLE 2;
    meter_mod 12 "A change of meters": UNKNOWN 0, METER_EXISTS 1, INVALID_METER 2, UNKNOWN_METER 3, BAD_COMMAND 4, BAD_FLAGS 5, BAD_RATE 6, BAD_BURST 7, BAD_BAND 8, BAD_BAND_VALUE 9, OUT_OF_METERS 10, OUT_OF_BANDS 11;
    table_features 13 "Features of tables": BAD_TABLE 0, BAD_METADATA 1, BAD_TYPE 2, BAD_LEN 3, BAD_ARGUMENT 4, EPERM 5;
    bundle 0xffff "A message about a bundle, of the experimenter ONF,": UNKNOWN 2300, EPERM 2301, BAD_ID 2302, BUNDLE_EXIST 2303, BUNDLE_CLOSED 2304, OUT_OF_BUNDLES 2305, BAD_TYPE 2306, BAD_FLAGS 2307, MSG_BAD_LEN 2308, MSG_BAD_XID 2309, MSG_UNSUP 2310, MSG_CONFLICT 2311, MSG_TOO_MANY 2312, MSG_FAILED 2313, TIMEOUT 2314, BUNDLE_IN_PROGRESS 2315;
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some((about, name)) => write!(f, "{about} {name}"),
            None => write!(f, "type {} code {}", self.kind, self.code),
        }
    }
}

/// An error message: what is wrong, and the beginning of the message that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    /// What is wrong.
    pub refusal: Refusal,
    /// Of an error of an experimenter: which one.
    pub experimenter: u32,
    /// The beginning of the message, at least 64 bytes if it has as many; or text.
    pub data: Vec<u8>,
}
