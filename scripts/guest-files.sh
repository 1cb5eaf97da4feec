#!/usr/bin/env bash
# What the tests' QEMU guest is made of, in a folder: scripts/guest-files.sh FOLDER
#
# Debian's kernel for virtual machines, the drivers of a virtio network interface, and busybox. The packages are unpacked,
# not installed: installing a kernel would write into /boot, make an initramfs and change what the machine boots. And so
# it takes no root.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
[ -e "$1/vmlinuz" ] && exit 0
mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# For apt's own user.
chmod 755 "$scratch"
cd "$scratch"

# The package without a version in its name depends on the one that has the files.
kernel=$(apt-cache depends --important linux-image-cloud-amd64 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
[ -n "$kernel" ] || { echo "$0: apt knows no linux-image-cloud-amd64 (as root: apt-get update)" >&2; exit 1; }
apt-get download "$kernel" busybox-static >log 2>&1 || { cat log >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done

# The order in which they are loaded: a module comes after those that it needs.
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net)
mkdir made
for module in "${modules[@]}"; do
    file=$(find files -name "$module.ko" -print -quit)
    # One that is not there is in the kernel itself.
    [ -z "$file" ] || { mv "$file" made; echo "$module" >>made/modules; }
done
mv files/boot/vmlinuz-* made/vmlinuz
mv files/bin/busybox made/busybox
# In one step; somebody else may have been faster.
mv -T made "$folder" 2>/dev/null || [ -e "$folder/vmlinuz" ]
