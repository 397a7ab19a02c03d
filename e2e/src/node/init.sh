# PID 1 of a node: creates its mounts and its network, creates the file `ready`, and then reaps child processes. Everything
# belongs to the namespaces and ends with them. The script reads files of the host, and never changes them.
#
# usage: init.sh FOLDER ADDRESS PROGRAM
set -eux
folder=$1 address=$2 program=$3
cd /
echo node >/proc/sys/kernel/hostname

# /proc and /sys depend on the namespaces. The new /sys has no /sys/kernel/security, because its profiles are for the host.
mount --make-rprivate /
mount -t proc proc /proc
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys

if grep -q '^[1-9]' /proc/self/cgroup; then
  # cgroup v1 has a hierarchy for each controller, or for several controllers together.
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
  # A group of cgroup v2 has either processes or children with controllers, so the processes move into a leaf.
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir /sys/fs/cgroup/init
  echo 0 >/sys/fs/cgroup/init/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi

# kubelet and containerd need folders in /var/lib that the host may lack or use. A new /var/lib has the host's folders, but the
# folders of kubelet and containerd are those of this run.
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

# kubelet sets these settings, which apply to the whole machine. Ordinary files with the expected values replace them here.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  # Some kernels do not have all settings.
  [ -e "/proc/sys/${setting%=*}" ] || continue
  file=/run/sysctl/${setting%=*}
  mkdir -p "${file%/*}"
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done

# A network without a connection to others: the other end of the pair is unused. Programs expect a default route.
ip link set lo up
ip link add node0 type veth peer name nowhere
ip address add "$address/24" dev node0
ip link set node0 up
ip link set nowhere up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

touch "$folder/ready"
exec "$program"
