#!/usr/bin/env bash
# What the tests' QEMU guest is made of, in a folder: scripts/guest-files.sh FOLDER [rxe|ppp|ipsec|vfio|router|xen]
#
# Debian's kernel for virtual machines, the drivers of a virtio network interface, and busybox. With `rxe` or `ppp` Debian's
# ordinary kernel, because only that has the RDMA device of Linux in software, or PPP, and the modules of it. With `ipsec` the usual
# kernel with ESP and its ciphers. With `vfio` the usual kernel with the drivers by which a program has a PCI function. With `router` the ordinary kernel with all that it has of networks, for a guest that sees the files of this
# machine and loads modules when it needs them. With `xen` that as domain 0 of a Xen, and as its guests: the hypervisor, and the tools that belong to it. The packages are unpacked, not installed: installing a kernel would write into /boot, make an
# initramfs and change what the machine boots. And so it takes no root.
set -euo pipefail
case ${2:-} in
"") image=linux-image-cloud-amd64 wanted=(virtio_pci virtio_net) ;;
# The third is for its checksums: the guest has nothing that would load it when it is asked for.
rxe) image=linux-image-amd64 wanted=(virtio_pci virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm) ;;
# Frames of PPP by the kernel's PPPoE, and by a terminal.
ppp) image=linux-image-amd64 wanted=(virtio_pci virtio_net af_packet pppoe ppp_async ppp_synctty n_hdlc) ;;
# The ciphers are for the names of their templates, which nothing would load either.
ipsec) image=linux-image-cloud-amd64 wanted=(virtio_pci virtio_net esp4 esp6 xfrm_user nlmon gcm ghash-generic ctr seqiv echainiv
    authenc authencesn sha512_generic drbg chacha_generic poly1305_generic chacha20poly1305) ;;
# A PCI function in the hands of a program, behind an IOMMU.
vfio) image=linux-image-cloud-amd64 wanted=(virtio_pci vfio_iommu_type1 vfio-pci) ;;
router) image=linux-image-amd64 wanted=(virtio_pci 9p 9pnet_virtio) ;;
xen) image=linux-image-amd64 wanted=(virtio_pci 9p 9pnet_virtio xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs) ;;
*) image= ;;
esac
[ $# -ge 1 ] && [ -n "$image" ] || { echo "usage: $0 FOLDER [rxe|ppp|ipsec|vfio|router|xen]" >&2; exit 2; }
[ -e "$1/vmlinuz" ] && exit 0
mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# For apt's own user.
chmod 755 "$scratch"
cd "$scratch"

# The package without a version in its name depends on the one that has the files.
kernel=$(apt-cache depends --important "$image" 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
[ -n "$kernel" ] || { echo "$0: apt knows no $image (as root: apt-get update)" >&2; exit 1; }
more=()
[ "${2:-}" != xen ] || more=(xen-hypervisor-4.17-amd64 xen-utils-4.17 libxencall1 libxendevicemodel1 libxenevtchn1 libxenforeignmemory1
    libxengnttab1 libxenhypfs1 libxenmisc4.17 libxenstore4 libxentoolcore1 libxentoollog1 libyajl2)
apt-get download "$kernel" busybox-static "${more[@]}" >log 2>&1 || { cat log >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done

# add MODULE: the module, after those that it needs; `modules` has the order in which they are loaded.
add() {
    local file needed
    file=$(find files -name "$1.ko" -print -quit)
    # One that is not there is in the kernel itself or was added.
    [ -n "$file" ] && [ ! -e "made/$1.ko" ] || return 0
    for needed in $(grep -a -o -m 1 'depends=[a-z0-9_,-]*' "$file" | head -n 1 | sed 's/depends=//; s/,/ /g'); do
        add "$needed"
    done
    cp "$file" made
    basename "$file" .ko >>made/modules
}
mkdir made
for module in "${wanted[@]}"; do
    add "$module"
done
if [ "${2:-}" = router ]; then
    tree=$(echo files/lib/modules/*)
    mkdir -p "made/${tree#files/}/kernel/drivers/net"
    mv "$tree"/modules.{order,builtin,builtin.modinfo} "made/${tree#files/}"
    mv "$tree"/kernel/{net,crypto,lib,arch} "made/${tree#files/}/kernel"
    mv "$tree"/kernel/drivers/net/{veth.ko,dummy.ko,tun.ko,ppp,slip} "made/${tree#files/}/kernel/drivers/net"
    PATH=$PATH:/usr/sbin:/sbin depmod -b made "$(basename "$tree")"
fi
if [ "${2:-}" = xen ]; then
    gunzip --stdout files/boot/xen-*-amd64.gz >made/xen
    mkdir made/tools
    mv files/usr/lib/xen-4.17/bin/{xl,xenconsoled,xenstored,xen-init-dom0} made/tools
    find files -name 'lib[xy]*.so.*' -exec mv -t made/tools {} +
fi
mv files/boot/vmlinuz-* made/vmlinuz
mv files/bin/busybox made/busybox
# In one step; somebody else may have been faster.
mv -T made "$folder" 2>/dev/null || [ -e "$folder/vmlinuz" ]
