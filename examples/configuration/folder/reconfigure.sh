# The script of the sample component, called as `reconfigure.sh policies '<json>'`. It rejects more memory than the component can have, and
# writes each update that it accepts to `meter.log` in the working folder of the policy server.
most=1024
limit=$(printf '%s' "$2" | sed -n 's/.*"limitMib":\([0-9]*\).*/\1/p')
if [ "${limit:-0}" -gt "$most" ]; then
    echo "limitMib is $limit, at most $most is possible" >&2
    exit 3
fi
printf '%s\n' "$2" >> meter.log
