#!/usr/bin/env bash
# A kind cluster whose node can run gVisor pods, for people who have Docker and
# no wish for `make cluster-up`.
#
# What was tested: the logic of this script, against stand-ins that record how
# kind, docker, kubectl and curl are called (hack/kind). It has not been run
# against a real Docker yet. If it fails for you, please report it.
set -euo pipefail
# Without it, a failed command inside $(...) would go unnoticed.
shopt -s inherit_errexit 2>/dev/null || { echo 'kind-gvisor: needs bash 4.4 or newer' >&2; exit 1; }

readonly cluster="${SANDBOX_BROKER_KIND_CLUSTER:-sandbox-broker}"
# Kubernetes 1.36.4, as released with kind v0.33.0. The digest is what is pinned.
readonly node_image='kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed'
readonly pinned_release='20260817.0'
readonly gvisor_release="${GVISOR_RELEASE:-$pinned_release}"
readonly downloads='https://storage.googleapis.com/gvisor/releases/release'
readonly binaries=(runsc containerd-shim-runsc-v1)
readonly ready_timeout=180s
readonly download_timeout=600 # seconds for each of the two files

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root

usage() {
  cat <<EOF
Usage: hack/kind-gvisor.sh up|down

  up    Create the kind cluster '$cluster' unless it is there, put gVisor
        $gvisor_release on its nodes, and create the RuntimeClass 'gvisor'.
        Safe to repeat: it does what is still missing.
  down  Delete the cluster. Downloads stay in the cache.

Needs docker, kind, kubectl, curl, and sha512sum or shasum.

Variables:
  SANDBOX_BROKER_KIND_CLUSTER  the cluster's name (sandbox-broker)
  GVISOR_RELEASE               another gVisor release; then its checksums too:
  GVISOR_SHA512_RUNSC          SHA-512 of runsc
  GVISOR_SHA512_SHIM           SHA-512 of containerd-shim-runsc-v1
  XDG_CACHE_HOME               where downloads are kept (~/.cache)
EOF
}

say() { printf 'kind-gvisor: %s\n' "$*"; }
fail() {
  printf 'kind-gvisor: %s\n' "$*" >&2
  exit 1
}

need() {
  local missing=() command
  for command in "$@"; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  if ((${#missing[@]} > 0)); then
    fail "not found: ${missing[*]}"
  fi
}

# expected_sha512 BINARY ARCH prints the checksum that the binary must have. A
# checksum fetched from beside the binary would only prove that the download was
# complete, so they are written down here.
expected_sha512() {
  case "$1" in
    runsc) [[ -n ${GVISOR_SHA512_RUNSC:-} ]] && { echo "$GVISOR_SHA512_RUNSC"; return; } ;;
    *) [[ -n ${GVISOR_SHA512_SHIM:-} ]] && { echo "$GVISOR_SHA512_SHIM"; return; } ;;
  esac
  if [[ $gvisor_release != "$pinned_release" ]]; then
    fail "GVISOR_RELEASE=$gvisor_release needs GVISOR_SHA512_RUNSC and GVISOR_SHA512_SHIM"
  fi
  case "$1/$2" in
    runsc/x86_64) echo 84936438d583ec976800f464e75a83e1515f0890b451b9b4db219c4472b54ca9b106a6772ee683f1e64cce2128871d7637b14d800591f8451b8137f6c39fb2ef ;;
    runsc/aarch64) echo 6394fd161a4af0dc9a2c29f75c3016d05275a55744f124e12023fa7666a9f161c68d6ce3803ad49205c6a7b5bee0ad2ccf48edff340db344fdafec678c788aa4 ;;
    containerd-shim-runsc-v1/x86_64) echo b60d1c418b841ab046951cc7a91f490a221198fbe81ec55dc364432578fddd44e97063793ce6651be397af2f64ec47170dff77a45db277819c3fb08fec9f3ced ;;
    containerd-shim-runsc-v1/aarch64) echo a7c0147f635938225e41c9660b95ba5235121a142c11830794e2a52b472783547e2b089bdba4f1344d30f65aeee651b377a1cafadd262a134f5e1ac10c6bf4bb ;;
    *) fail "gVisor has no $1 for the architecture $2" ;;
  esac
}

# sha512_of FILE prints its checksum, with what Linux or macOS has.
sha512_of() {
  local out
  if command -v sha512sum >/dev/null; then
    out="$(sha512sum "$1")"
  else
    out="$(shasum -a 512 "$1")"
  fi
  echo "${out%% *}"
}

# download BINARY ARCH prints the path of the verified binary in the cache.
download() {
  local binary=$1 arch=$2 want folder file
  want="$(expected_sha512 "$binary" "$arch")"
  folder="${XDG_CACHE_HOME:-$HOME/.cache}/sandbox-broker/gvisor/$gvisor_release/$arch"
  file="$folder/$binary"
  if [[ -f $file && "$(sha512_of "$file")" == "$want" ]]; then
    echo "$file"
    return
  fi
  mkdir -p "$folder"
  # Under another name until it is verified, so that an interrupted or a wrong
  # download is never taken for a good one.
  curl --fail --silent --show-error --location --max-time "$download_timeout" \
    --output "$file.part" "$downloads/$gvisor_release/$arch/$binary" >&2
  if [[ "$(sha512_of "$file.part")" != "$want" ]]; then
    rm -f "$file.part"
    fail "$binary of gVisor $gvisor_release for $arch does not have the expected SHA-512; nothing was installed"
  fi
  mv "$file.part" "$file"
  echo "$file"
}

# cluster_exists compares whole lines: a name may be the start of another.
cluster_exists() {
  local clusters
  clusters="$(kind get clusters)" || fail 'kind cannot list its clusters; is Docker running?'
  grep -qxF -- "$cluster" <<<"$clusters"
}

# install_binaries NODE ARCH copies what the node lacks or has in another version.
install_binaries() {
  local node=$1 arch=$2 binary file have
  for binary in "${binaries[@]}"; do
    file="$(download "$binary" "$arch")"
    have="$(docker exec "$node" sha512sum "/usr/local/bin/$binary" 2>/dev/null || true)"
    if [[ ${have%% *} == "$(sha512_of "$file")" ]]; then
      continue
    fi
    say "$node: installing $binary of gVisor $gvisor_release"
    docker cp "$file" "$node:/usr/local/bin/$binary"
    docker exec "$node" chmod 0755 "/usr/local/bin/$binary"
  done
}

# configure_containerd NODE adds the runtime `runsc`. The name of the section
# depends on the version of containerd's configuration.
configure_containerd() {
  local node=$1 config section
  config="$(docker exec "$node" cat /etc/containerd/config.toml)"
  if ! grep -qF 'containerd.runtimes.runsc]' <<<"$config"; then
    if grep -qE '^version *= *3' <<<"$config"; then
      section='io.containerd.cri.v1.runtime'
    elif grep -qE '^version *= *2' <<<"$config"; then
      section='io.containerd.grpc.v1.cri'
    else
      fail "$node: containerd's configuration is neither version 2 nor 3"
    fi
    say "$node: adding the runtime runsc to containerd"
    printf '\n[plugins."%s".containerd.runtimes.runsc]\n  runtime_type = "io.containerd.runsc.v1"\n' "$section" |
      docker exec -i "$node" tee -a /etc/containerd/config.toml >/dev/null
  fi
  # Asks containerd itself: an earlier run may have ended before the restart.
  local info
  info="$(docker exec "$node" crictl info)"
  if ! grep -qF '"runsc"' <<<"$info"; then
    docker exec "$node" systemctl restart containerd
  fi
}

up() {
  need docker kind kubectl curl
  command -v sha512sum >/dev/null || need shasum
  if cluster_exists; then
    say "the cluster $cluster is there already"
  else
    say "creating the cluster $cluster"
    kind create cluster --name "$cluster" --image "$node_image" --wait "$ready_timeout"
  fi

  local nodes node arch
  nodes="$(kind get nodes --name "$cluster")"
  for node in $nodes; do
    arch="$(docker exec "$node" uname -m)"
    install_binaries "$node" "$arch"
    configure_containerd "$node"
  done

  kubectl --context "kind-$cluster" wait --for=condition=Ready node --all --timeout="$ready_timeout"
  kubectl --context "kind-$cluster" apply -f "$root/deploy/gvisor/runtimeclass.yaml"
  say "ready: kubectl --context kind-$cluster; docs/deploy.md tells what to apply next"
}

down() {
  need kind
  if ! cluster_exists; then
    say "there is no cluster $cluster"
    return
  fi
  kind delete cluster --name "$cluster"
}

if (($# != 1)); then
  usage >&2
  exit 2
fi
case "$1" in
  up) up ;;
  down) down ;;
  -h | --help | help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
