seq 1 1000 | while read -r i; do :; done
yes | head -n 2
echo "${PIPESTATUS[@]}"
cat <<X
here $((1 + 1)) $HOME
X
mapfile -t lines < <(printf '1\n2\n')
echo "${#lines[@]}" <<<x
exec 3>f; echo to three >&3; exec 3>&-; cat f
