# PID 1 of a node: makes its mounts and its network, says so with a file, then reaps. All of it belongs to namespaces
# and ends with them; what the host has is looked at, never changed.
#
# usage: init.sh FOLDER ADDRESS PROGRAM
set -eux
folder=$1 address=$2 program=$3
cd /
echo node >/proc/sys/kernel/hostname

# The views that depend on the namespaces. /sys/kernel/security goes with the old /sys: profiles are the host's.
mount --make-rprivate /
mount -t proc proc /proc
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys

if grep -q '^[1-9]' /proc/self/cgroup; then
  # cgroup v1: a hierarchy for each controller, or for some together.
  mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
  while IFS=: read -r number controllers _; do
    [ "$number" != 0 ] || continue
    name=${controllers#name=}
    [ "$name" = "$controllers" ] && options=$controllers || options=none,$controllers
    mkdir "/sys/fs/cgroup/$name"
    mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$name"
    for controller in $(echo "$name" | tr , ' '); do
      [ -e "/sys/fs/cgroup/$controller" ] || ln -s "$name" "/sys/fs/cgroup/$controller"
    done
  done </proc/self/cgroup
else
  # cgroup v2: a group has processes or children with controllers, never both. Processes go into a leaf.
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir /sys/fs/cgroup/init
  echo 0 >/sys/fs/cgroup/init/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi

# kubelet and containerd insist on folders in /var/lib, which the host need not have: a /var/lib of our own shows the
# host's folders and, in the place of theirs, those of this run.
mount -t tmpfs -o mode=755 run /run
mkdir /run/host
mount --rbind /var/lib /run/host
mount -t tmpfs -o mode=755 lib /var/lib
for path in /run/host/*/; do
  name=$(basename "$path")
  case $name in kubelet | containerd | cni) continue ;; esac
  mkdir "/var/lib/$name"
  mount --rbind "$path" "/var/lib/$name"
done
umount --recursive --lazy /run/host
for path in /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log; do
  mkdir -p "$path" "$folder$path"
  mount --bind "$folder$path" "$path"
done
mkdir /run/lock
mount --make-rshared /

# kubelet sets these for the whole machine: it shall find what it wants, in files that are not the kernel's.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  # Kernels differ in what they have.
  [ -e "/proc/sys/${setting%=*}" ] || continue
  file=/run/sysctl/${setting%=*}
  mkdir -p "${file%/*}"
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done

# A network that ends here: the other end of the pair leads nowhere, but there is a default route, as programs expect.
ip link set lo up
ip link add node0 type veth peer name nowhere
ip address add "$address/24" dev node0
ip link set node0 up
ip link set nowhere up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

touch "$folder/ready"
exec "$program"
