# Removes cgroups once the program that holds the other end of our stdin is gone, however it ended, and its processes
# with it. Only empty groups can be removed, so nothing that lives is lost.
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
