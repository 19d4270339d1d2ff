#!/bin/bash
# What a boot does on a real server. Runs as process 1's only child, again after every restart of the container.
set -u
rm -rf /run/docker* /run/containerd* /var/run/docker.pid /run/gpusim /run/instinct-fleet /run/lab
mkdir -p /run/lab /run/sshd

# The kernel's values, of this node's own: NUMA balancing is on after a boot, then sysctl.d has its say.
echo "${LAB_NUMA_BALANCING:-1}" > /run/lab/numa_balancing
mount --bind /run/lab/numa_balancing /proc/sys/kernel/numa_balancing
echo "BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=/dev/md0 ro ${LAB_CMDLINE:-pci=realloc=off iommu=pt quiet}" > /run/lab/cmdline
mount --bind /run/lab/cmdline /proc/cmdline
sysctl -q --system --pattern '^kernel\.numa_balancing$' 2> /dev/null

PYTHONPATH=/opt/instinct-lab python3 -m gpusim serve > /var/log/gpusim.log 2>&1 &

ssh-keygen -A > /dev/null
/usr/sbin/sshd
dockerd > /var/log/dockerd.log 2>&1 &
wait
