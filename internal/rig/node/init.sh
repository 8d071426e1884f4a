# The first process of a node, in new mount, PID, network, UTS and IPC namespaces. It says "ready", reaps orphans, and ends
# when its standard input ends; all other processes of the node end with it.
#
#   bash -c THIS node DIR NAME CGROUP...
set -euo pipefail
dir=$1 name=$2
shift 2

if [ -z "${GUESTWIRE_NODE_CGROUPS-}" ]; then
	for cgroup; do
		echo 0 >"$cgroup/cgroup.procs"
	done
	# A new cgroup namespace takes the process's cgroups for the roots.
	GUESTWIRE_NODE_CGROUPS=1 exec unshare --cgroup bash -c "$BASH_EXECUTION_STRING" node "$dir" "$name" "$@"
fi
unset GUESTWIRE_NODE_CGROUPS

mount --make-rprivate /
# The root is a copy of the machine's. An engine's storage and what is kept over a restart is not on that overlay.
mkdir -p "$dir"/{root,work,var/lib,var/log,run}
root=/mnt
mount -t overlay -o "lowerdir=/,upperdir=$dir/root,workdir=$dir/work" node "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || : # in a sandbox it is another one than the machine's
mount --rbind /tmp "$root/tmp"
case $dir in
/tmp/*) ;;
*) mkdir -p "$root$dir" && mount --bind "$dir" "$root$dir" ;;
esac
mount --bind "$dir/var/lib" "$root/var/lib"
mount --bind "$dir/var/log" "$root/var/log"
mount --bind "$dir/run" "$root/run"
mkdir -p "$root"/run/lock
mount -t proc node "$root/proc"
mount -t sysfs node "$root/sys"

# A change of a device's mode or a new device stays in the node.
mount -t tmpfs -o mode=755 node "$root/dev"
for device in null zero full random urandom tty; do
	mknod -m 666 "$root/dev/$device" c $((16#$(stat -c %t "/dev/$device"))) $((16#$(stat -c %T "/dev/$device")))
done
[ ! -c /dev/kmsg ] || mknod -m 600 "$root/dev/kmsg" c 1 11
mkdir "$root"/dev/{net,pts,shm,mqueue}
mknod -m 666 "$root/dev/net/tun" c 10 200
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 node "$root/dev/pts"
mount -t tmpfs -o mode=1777 node "$root/dev/shm"
mount -t mqueue node "$root/dev/mqueue"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do
	ln -s "/proc/self/fd/${n%:*}" "$root/dev/${n#*:}"
done

if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
	mount -t cgroup2 node "$root/sys/fs/cgroup"
	# A cgroup with processes has no controllers for its children: the processes go one down.
	mkdir -p "$root/sys/fs/cgroup/init"
	echo 0 >"$root/sys/fs/cgroup/init/cgroup.procs"
	for controller in $(<"$root/sys/fs/cgroup/cgroup.controllers"); do
		echo "+$controller" >"$root/sys/fs/cgroup/cgroup.subtree_control"
	done
else
	mount -t tmpfs -o mode=755 node "$root/sys/fs/cgroup"
	mounts=$(grep ' /sys/fs/cgroup/' /proc/self/mounts) # of the machine alone
	while read -r _ at kind options _; do
		case $kind in
		cgroup) options=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|(rel|noa)time|no(suid|dev|exec)' | paste -sd,) ;;
		cgroup2) options=rw ;;
		*) continue ;;
		esac
		mkdir "$root/sys/fs/cgroup/${at##*/}"
		mount -t "$kind" -o "$options" node "$root/sys/fs/cgroup/${at##*/}"
	done <<<"$mounts"
fi

# A kubelet writes sysctls of the whole machine. It finds them written.
mkdir -p "$dir/sysctl"
while read -r sysctl value; do
	[ -e "$root/proc/sys/$sysctl" ] || continue
	file=$dir/sysctl/${sysctl//\//.}
	echo "$value" >"$file"
	mount --bind "$file" "$root/proc/sys/$sysctl"
done <<-END
	vm/overcommit_memory 1
	vm/panic_on_oom 0
	kernel/panic 10
	kernel/panic_on_oops 1
	kernel/keys/root_maxkeys 1000000
	kernel/keys/root_maxbytes 25000000
END
# A process in another user namespace may mount a proc only where a proc without mounts upon it is visible.
mkdir -p "$root/run/proc"
mount -t proc node "$root/run/proc"

hostname "$name"
ip link set lo up
cd "$root"
mkdir -p run/old
pivot_root . run/old
umount -l /run/old
rmdir /run/old
mount --make-rshared /
echo ready
read -r || :
