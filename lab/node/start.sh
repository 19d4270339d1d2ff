#!/bin/bash
# What a boot does on a real server. Runs as process 1's only child, again after every restart of the container.
set -u
rm -rf /run/docker* /run/containerd* /var/run/docker.pid /run/gpusim /run/instinct-fleet /run/lab /run/units
mkdir -p /run/lab /run/sshd

# The kernel command line that update-grub wrote, and the kernel's values, of this node's own: NUMA balancing is on
# after a boot, then sysctl.d has its say.
read -r _ kernel arguments < /boot/grub/grub.cfg
echo "BOOT_IMAGE=$kernel $arguments" > /run/lab/cmdline
mount --bind /run/lab/cmdline /proc/cmdline
balancing=1
case " $arguments " in *" numa_balancing=disable "*) balancing=0 ;; esac
echo "$balancing" > /run/lab/numa_balancing
# A kernel that was built without it has no such setting: a directory that has it, and all others. No links, which
# sysctl does not follow.
if ! test -e /proc/sys/kernel/numa_balancing; then
    mkdir /run/lab/kernel
    mount --bind /proc/sys/kernel /run/lab/kernel
    mount -t tmpfs -o mode=555 kernel /proc/sys/kernel
    for setting in /run/lab/kernel/*; do
        here=/proc/sys/kernel/${setting##*/}
        if test -d "$setting"; then mkdir "$here"; else touch "$here"; fi
        mount --bind "$setting" "$here"
    done
    touch /proc/sys/kernel/numa_balancing
fi
mount --bind /run/lab/numa_balancing /proc/sys/kernel/numa_balancing
# What a kernel starts with; a network namespace would have what the machine below has set.
for name in rp_filter arp_ignore arp_announce; do echo 0 > "/proc/sys/net/ipv4/conf/all/$name"; done
sysctl -q --system --pattern '^(kernel\.numa_balancing|net\.ipv4\.conf\..*)$' 2> /dev/null
cat /proc/sys/kernel/random/uuid > /run/lab/boot_id
mount --bind /run/lab/boot_id /proc/sys/kernel/random/boot_id
# What timesyncd leaves once it has reached its servers.
mkdir -p /run/systemd/timesync && touch /run/systemd/timesync/synchronized
# And apt's daily timer once it has fetched the lists of packages; a test that wants old ones removes this.
touch /var/lib/apt/periodic/update-success-stamp

PYTHONPATH=/opt/instinct-lab python3 -m gpusim serve > /var/log/gpusim.log 2>&1 &

# One kind of key: RSA's takes a second of a core.
test -e /etc/ssh/ssh_host_ed25519_key || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key

# Before that, who logs in would see the machine below: its processors, and none of the devices.
until test -e /run/gpusim/ready; do sleep 0.1; done
/usr/sbin/sshd

# Settings and services of the operator's; some are to run before Docker starts containers.
systemctl boot-early
dockerd > /var/log/dockerd.log 2>&1 &
systemctl boot
touch /run/lab/booted
wait
