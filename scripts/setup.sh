#!/usr/bin/env bash
# Installs what the project needs on Debian 12, and does nothing where it is all there.
#
#   scripts/setup.sh --build   to build, and to run the demo: what `make build` does
#   scripts/setup.sh           to build and to run the tests, as `make test` does
#   scripts/setup.sh --bench   to build and to measure beside DPDK and Open vSwitch, as `make bench` does
#
# As root it installs Debian packages. As anybody else it says which are missing and leaves them out: the build needs
# Rust and a C compiler, everything else only makes single tests possible.
set -euo pipefail
. "$(dirname "$0")/env.sh"

purpose=${1:---test}
case $purpose in
--build | --test | --bench) ;;
*) echo "setup.sh: there is no $purpose; there are --build, --test (what it does by itself) and --bench" >&2; exit 2 ;;
esac

# What brings something from a network: a server that never answers must not hold up for ever what can be done without it.
bounded() {
    timeout -k 10 "${SETUP_SECONDS:-900}" "$@"
}

packages=()
# need COMMAND PACKAGE: the package, unless the command is there. /usr/sbin is not on everybody's path.
need() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || packages+=("$2")
}

installed() {
    dpkg -s "$1" >/dev/null 2>&1
}

to_build() {
    need cc build-essential
    need make make
    [ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
    # The programs for the kernel of the router and of its benchmark; without clang the build leaves those out.
    need clang clang
    need pkg-config pkg-config
    installed libelf-dev || [ -e /usr/include/libelf.h ] || packages+=(libelf-dev)
    installed zlib1g-dev || [ -e /usr/include/zlib.h ] || packages+=(zlib1g-dev)
    # Debian keeps a current Rust beside the one it was released with, for its browsers; hence the names.
    find_rust || packages+=(rustc-web cargo-web)
}

# What tests and benchmarks both have at the other end of a port.
to_meet_others() {
    need python3 python3
    need ip iproute2
    need setpriv util-linux
    need dpdk-testpmd dpdk-dev
    [ -x /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk ] || packages+=(openvswitch-switch-dpdk)
}

to_test() {
    need c++ build-essential
    need dtc device-tree-compiler
    need strace strace
    need qemu-system-x86_64 qemu-system-x86
    need iperf3 iperf3
    need tcpdump tcpdump
    need tshark tshark
    /usr/bin/python3 -c "import scapy.contrib.roce" 2>/dev/null || packages+=(python3-scapy)
    need ibv_rc_pingpong ibverbs-utils
    need ib_write_bw perftest
    need rping rdmacm-utils
    need fi_pingpong libfabric-bin
    need ethtool ethtool
    # What configures the router of tests/router.
    need nft nftables
    need iptables iptables
    need conntrack conntrack
    need ping iputils-ping
    need valgrind valgrind
    need cbindgen cbindgen
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    # That of Debian 12 is too old for quic-go, that of its backports is not.
    need go golang-go
    # Programs over verbs that are none of perftest's.
    need ucx_info ucx-utils
    installed ibverbs-providers || packages+=(ibverbs-providers)
    installed python3-pyverbs || packages+=(python3-pyverbs)
    installed python3-numpy || packages+=(python3-numpy)
    need mpicc.mpich mpich
    installed libmpich-dev || packages+=(libmpich-dev)
    need mpiexec.openmpi openmpi-bin
    installed libopenmpi-dev || packages+=(libopenmpi-dev)
    # Programs over TCP, for the socket library.
    need redis-server redis-server
    need redis-benchmark redis-tools
    need nginx nginx-light
    need wrk wrk
    need curl curl
    need socat socat
    need memcached memcached
    need haproxy haproxy
    need openssl openssl
    # Modules of a guest's kernel.
    need depmod kmod
    # IKE, for a guest.
    need swanctl strongswan-swanctl
    need charon-systemd charon-systemd
    # Routing daemons, beside the router.
    [ -x /usr/lib/frr/zebra ] || packages+=(frr)
    # The other end of PTP.
    [ -x /usr/sbin/ptp4l ] || packages+=(linuxptp)
    # A PPPoE server, for a guest.
    need pppd ppp
    need pppoe-server pppoe
    # Beside a Rust of Debian; rustup has its own.
    if ! find_rust || installed cargo-web; then
        installed rustfmt-web || packages+=(rustfmt-web)
        installed rust-web-clippy || packages+=(rust-web-clippy)
    fi
}

to_build
[ "$purpose" = --build ] || to_meet_others
[ "$purpose" != --test ] || to_test
[ "$purpose" != --bench ] || pkg-config --exists libdpdk 2>/dev/null || packages+=(libdpdk-dev)
# What `bench rdma` is built with, and compared with.
[ "$purpose" = --build ] || [ -e /usr/include/infiniband/verbs.h ] || packages+=(libibverbs-dev)
if [ "$purpose" = --bench ]; then
    need ucx_perftest ucx-utils
    need fi_pingpong libfabric-bin
    # The three namespaces of `bench router`.
    need ethtool ethtool
    need nft nftables
    need iperf3 iperf3
fi

# The packages of Open vSwitch, redis, nginx, strongSwan and FRR start services at once and at every start of the system. Benchmark and tests run
# copies of their own in folders of their own, and only while they work; so where we install them, nothing shall run afterwards.
# policy-rc.d is how Debian asks whether a package may start something; an existing one is left alone.
policy=/usr/sbin/policy-rc.d
quiet_services() {
    case " ${packages[*]} " in *" openvswitch-switch-dpdk "* | *" nginx-light "* | *" redis-server "* | *" charon-systemd "* | *" frr "*) ;; *) return 0 ;; esac
    [ -e "$policy" ] && return 0
    printf '#!/bin/sh\n# From scripts/setup.sh of Millrace, for the time of one installation.\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made_policy=yes
}
loud_services() {
    [ "$made_policy" = yes ] || return 0
    rm -f "$policy"
    made_policy=no
    if command -v systemctl >/dev/null && systemctl list-unit-files openvswitch-switch.service >/dev/null 2>&1; then
        systemctl disable openvswitch-switch ovs-vswitchd ovsdb-server >/dev/null 2>&1 || true
        echo "setup: Open vSwitch is installed, and not started; systemctl enable --now openvswitch-switch does that"
    fi
    case " ${packages[*]} " in *" charon-systemd "*)
        ! command -v systemctl >/dev/null || systemctl disable strongswan >/dev/null 2>&1 || true ;;
    esac
    case " ${packages[*]} " in *" frr "*)
        ! command -v systemctl >/dev/null || systemctl disable frr >/dev/null 2>&1 || true ;;
    esac
    case " ${packages[*]} " in *" redis-server "* | *" nginx-light "*)
        ! command -v systemctl >/dev/null || systemctl disable redis-server nginx >/dev/null 2>&1 || true ;;
    esac
}
made_policy=no

if [ ${#packages[@]} -gt 0 ]; then
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: missing Debian packages: ${packages[*]}"
        echo "setup: not root, so they are not installed; as root: apt-get install ${packages[*]}"
    elif ! command -v apt-get >/dev/null; then
        echo "setup: missing (names of Debian packages): ${packages[*]}"
        echo "setup: this is not Debian, so please install them by hand"
    else
        echo "setup: installing ${packages[*]}"
        # A folder of our own for temporary files: installing can restart what cleans /tmp.
        scratch=$(mktemp -d)
        trap 'rm -rf "$scratch"; loud_services' EXIT
        log=$scratch/log
        export TMPDIR=$scratch DEBIAN_FRONTEND=noninteractive
        quiet_services
        if ! { bounded apt-get update && bounded apt-get install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1 </dev/null
        then
            tail -n 30 "$log"
            # One that cannot be had must not keep the others away.
            for package in "${packages[@]}"; do
                bounded apt-get install -y --no-install-recommends "$package" >"$log" 2>&1 </dev/null ||
                    { tail -n 3 "$log"; echo "setup: $package cannot be installed"; }
            done
        fi
        loud_services
    fi
fi

if ! find_rust; then
    echo "setup: there is no Rust $rust_wanted or newer, without which nothing can be built;" \
        "install it with rustup, or the Debian packages rustc-web and cargo-web" >&2
    exit 1
fi
command -v cc >/dev/null || { echo "setup: there is no C compiler (cc), which the linker needs" >&2; exit 1; }
# For the tests with a virtual machine: the usual kernel, one with RDMA, one with PPP, one with ESP, one for PCI functions in the hands of programs, one with all of networks, and Xen. The lists of packages may be old.
if [ "$purpose" = --test ] && command -v qemu-system-x86_64 >/dev/null; then
    scripts=$(dirname "$0")
    for kind in "" rxe ppp ipsec vfio router xen; do
        folder=$target/guest${kind:+-$kind}
        [ ! -e "$folder/vmlinuz" ] || continue
        echo "setup: downloading a kernel for virtual machines into $folder"
        bounded "$scripts/guest-files.sh" "$folder" $kind ||
            { [ "$(id -u)" -eq 0 ] && bounded apt-get update >/dev/null 2>&1 && bounded "$scripts/guest-files.sh" "$folder" $kind; } ||
            echo "setup: it cannot be had, so the tests that boot one are skipped"
    done
fi
# A QEMU that speaks vfio-user, for the cases `guest-pci`, `guest-device`, `guest-rdma`, `guest-kills`, `guest-handover` and `guest-killed`.
if [ "$purpose" = --test ] && [ ! -e "$target/qemu-vfio-user/qemu" ]; then
    echo "setup: downloading a QEMU that speaks vfio-user into $target/qemu-vfio-user"
    bounded "$(dirname "$0")/qemu-files.sh" "$target/qemu-vfio-user" || echo "setup: it cannot be had, so the cases guest-pci, guest-device, guest-rdma, guest-kills, guest-handover and guest-killed are skipped"
fi
[ "$purpose" != --test ] || bounded "$(dirname "$0")/quic-peers.sh" "$target/quic-peers" || echo "setup: not all QUIC stacks can be had"
# A controller of OpenFlow, for the case `agent`.
if [ "$purpose" = --test ] && ! "$target/os-ken/bin/python" -c "import os_ken" 2>/dev/null; then
    { python3 -m venv "$target/os-ken" && bounded "$target/os-ken/bin/pip" install --quiet --disable-pip-version-check os-ken==4.2.2; } ||
        echo "setup: os-ken cannot be had, so the case agent has no learning switch"
fi
echo "setup: $(cargo --version), $(command -v cargo)"
