for i in $(seq 1 300); do printf '%0500d\n' $i; done
printf '%070000d' 1 >&2
