# Waits until the program that holds the other end of stdin has ended, for any reason, and then removes cgroups. The script
# waits until their processes have ended: only an empty cgroup can be removed.
#
# usage: sweep.sh FOLDER...
cat >/dev/null
left=200
while [ "$left" -gt 0 ]; do
  remaining=
  for folder; do
    [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || remaining=$folder
  done
  [ "$remaining" ] || exit 0
  left=$((left - 1))
  sleep 0.05
done
echo "not empty after 10 s: $remaining" >&2
exit 1
