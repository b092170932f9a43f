#!/usr/bin/env bash
# One verb per task: `./build.sh help` lists them. Every verb first makes what it needs and is
# quick when that is there. Arguments after the verb go to the tool behind it.
#
#   PYTHON      interpreter to make .venv with (default: the first of python3.13, .12, .11, python3
#               that is 3.11 or newer)
#   JAVA_HOME   used when it is a Java 17 or 21; otherwise one is looked for, then installed
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd "$root"

venv=$root/.venv
python=$venv/bin/python
stamp=$venv/made-from       # what .venv was made from; written last, so half an install is redone
java_note=$venv/java-home   # where Java was found

# Containers often have it set. Tests start thousands of processes, and each would compile all of
# pymq, which takes longer than to import it.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_updated=
apt_install() {  # apt_install PACKAGE...: false when it cannot be had
  if [ -z "$apt_updated" ]; then
    apt-get update -qq >&2 || true   # one broken source must not hide the others
    apt_updated=yes
  fi
  say "installing $* with apt-get"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >&2
}

# ---------------------------------------------------------------------------------- Python

first_python() {  # first_python CODE: the first interpreter that runs CODE without an error
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c "$1" >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

find_python() {
  local recent='import sys; sys.version_info >= (3, 11) or sys.exit(1)' plain version
  first_python "$recent; import ensurepip, venv" && return   # Debian's lacks them without -venv
  plain=$(first_python "$recent") || die "no Python 3.11 or newer found: install one, or name it: PYTHON=/path/to/python3 ./build.sh env"
  version=$("$plain" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  if may_install && apt_install "$version-venv" && first_python "$recent; import ensurepip, venv"; then
    return
  fi
  die "$plain has no venv module: install it (Debian, as root: apt-get install $version-venv)"
}

made_from() {  # the folder and the interpreter, then the files that decide what is installed
  echo "$root $(readlink -f "$python" || true)"
  sha256sum setup.cfg pyproject.toml examples/shop/pyproject.toml
}

make_venv() {
  if [ -f "$stamp" ] && made_from | cmp -s - "$stamp"; then
    return
  fi
  if ! "$python" -m pip --version >/dev/null 2>&1 || ! grep -qxF "$root" "$venv/folder" 2>/dev/null; then
    local base
    base=$(find_python)
    say "making .venv with $("$base" --version)"
    "$base" -m venv --clear "$venv"
    echo "$root" > "$venv/folder"   # scripts in .venv hold this path: a moved folder starts from scratch
  fi
  rm -f "$stamp"
  say "installing pymq and everything it can use into .venv (minutes the first time)"
  # "compat" writes a plain .pth; the default puts an import hook in its place, which costs every
  # start and hides pyspark_pymq from Spark, which lists the modules in the folders of sys.path.
  "$python" -m pip install --quiet --disable-pip-version-check \
    --config-settings editable_mode=compat \
    --editable '.[all,dev]' --editable 'examples/shop[postgres,mariadb]' >&2
  # It names one root only; this one names all.
  printf '%s\n' "$root/broker" "$root/connector" "$root/examples/shop" \
    > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pymq-roots.pth"
  rm -rf build {broker,examples/shop}/*.egg-info examples/shop/build
  "$python" -c 'import sys; sys.exit(not set(sys.argv[1:]) <= set(sys.path))' \
    "$root/broker" "$root/connector" || die ".venv does not see broker/ and connector/: remove .venv and try again"
  made_from > "$stamp"
}

# ------------------------------------------------------------------------------------ Java

fits() {  # fits HOME: is there a Java 17 or 21? Reads its `release` file: starting a JVM takes longer
  [ -x "$1/bin/java" ] || return 1
  local version
  version=$(sed -n 's/^JAVA_VERSION="\(.*\)"/\1/p' "$1/release" 2>/dev/null || true)
  [ -n "$version" ] || version=$("$1/bin/java" -version 2>&1 | sed -n '1s/.*"\(.*\)".*/\1/p')
  [[ $version =~ ^(17|21)([^0-9]|$) ]]
}

find_java() {
  local on_path home
  on_path=$(readlink -f "$(command -v java || true)" 2>/dev/null || true)
  for home in "${JAVA_HOME:-}" "${on_path%/bin/java}" /usr/lib/jvm/*17* /usr/lib/jvm/*21* \
    /usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home; do
    if [ -n "$home" ] && fits "$home"; then
      echo "$home"
      return
    fi
  done
  return 1
}

make_java() {  # exports JAVA_HOME when there is a Java, and is silent about it
  local home=
  if [ -n "${JAVA_HOME:-}" ] && fits "$JAVA_HOME"; then
    home=$JAVA_HOME
  elif [ -f "$java_note" ] && [ -x "$(<"$java_note")/bin/java" ]; then
    home=$(<"$java_note")
  elif ! home=$(find_java) && may_install; then
    apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    home=$(find_java) || true
  fi
  if [ -z "$home" ]; then
    unset JAVA_HOME
    say "no Java 17 or 21 found, so nothing here can start Spark: install one (Debian, as root:" \
      "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to it"
    return
  fi
  export JAVA_HOME=$home PATH=$home/bin:$PATH
  echo "$home" > "$java_note.$$" && mv "$java_note.$$" "$java_note"   # whole, whoever reads it now
}

need_java() { [ -n "${JAVA_HOME:-}" ] || die "$1 needs Java 17 or 21"; }

# ----------------------------------------------------------------------------------- verbs

make_env() {
  make_venv
  make_java
  export PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
  # Spark's workers use this very interpreter, and nothing of it listens beyond this machine.
  export PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python SPARK_LOCAL_IP=127.0.0.1
}

run() { make_env; exec "$@"; }

demo() {
  make_env
  need_java "the demo"
  exec "$python" examples/flights/demo.py "$@"
}

shop() { run "$python" -m shop.story "$@"; }

bench_spark() {  # bench_spark [ceiling|kafka [ARGUMENTS]]: both without arguments
  make_env
  need_java "bench-spark"
  local part=${1:-both}
  shift || true
  case $part in both | ceiling | kafka) ;; *) die "bench-spark has the parts ceiling and kafka, not '$part'" ;; esac
  [ "$part" = kafka ] || "$python" -m tests.bench.spark "$@"
  [ "$part" != ceiling ] || return 0
  need_maven || die "the comparison with Kafka needs Maven (Debian: apt-get install maven)"
  "$python" tests/interop/jars.py --fetch kafka-3.9.1 spark-kafka-4.2.0
  in_spark 4.2 -m tests.bench.spark_beside_kafka "$@"
}

in_spark() {  # in_spark VERSION ARGUMENTS: a Python with that Spark, and all else from .venv
  local version=$1 folder=$root/.matrix/$1 site
  shift
  if [ ! -f "$folder/ready" ]; then
    say "installing Spark $version into .matrix/$version"
    "$python" -m venv --clear --without-pip "$folder"
    "$python" -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check \
      "pyspark==$version.*" >&2 || return
    touch "$folder/ready"
  fi
  site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$root/broker" "$root/connector" "$root/examples/shop" \
    "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" > "$site/all-else.pth"
  PATH=$folder/bin:$PATH PYSPARK_PYTHON=$folder/bin/python PYSPARK_DRIVER_PYTHON=$folder/bin/python \
    "$folder/bin/python" "$@"
}

spark_matrix() {
  make_env
  need_java "spark-matrix"
  local version failed=
  for version in ${PYMQ_SPARK_VERSIONS:-4.0 4.1 4.2 4.3}; do
    say "testing with Spark $version"
    in_spark "$version" -m pytest tests/spark "$@" || failed+=" $version"
  done
  [ -z "$failed" ] || die "failed with Spark$failed"
}

pythons() {  # pythons [ARGUMENTS]: of pytest; tests/unit and tests/cluster without any
  make_env
  [ "$(id -u)" = 0 ] || die "pythons needs root, for chroot"
  command -v debootstrap >/dev/null || { may_install && apt_install debootstrap; } ||
    die "pythons needs debootstrap (Debian: apt-get install debootstrap)"
  [ $# -gt 0 ] || set -- -q tests/unit tests/cluster
  local release failed=
  for release in ${PYMQ_DEBIAN_RELEASES:-trixie sid}; do
    in_debian "$release" "$@" || failed+=" $release"
  done
  [ -z "$failed" ] || die "failed with the Python of Debian$failed"
}

in_debian() {  # in_debian RELEASE ARGUMENTS: pytest in that release, whose Python is another one
  local release=$1 folder=$root/.matrix/debian-$1 version
  shift
  if [ ! -f "$folder/ready" ]; then
    say "unpacking Debian $release into .matrix/debian-$release"
    rm -rf "$folder"
    mkdir -p "$folder"
    debootstrap --variant=minbase --include=python3,iproute2,procps "$release" "$folder/root" >"$folder/log" 2>&1 ||
      { say "debootstrap failed: $(tail -n 3 "$folder/log")"; return 1; }
    version=$(chroot "$folder/root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "installing what tests need for Python $version"
    # From here, as the release may have no pip that reaches an index.
    rm -rf build
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" . || return 1
    rm -rf build broker/*.egg-info
    # Spark comes as its source only, which is in Python.
    "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --python-version "$version" \
      --target "$folder/root/site" "$(echo "$folder"/*.whl)[broker,cli,columns,compression,controller,otel]" \
      pytest pytest-xdist hypothesis opentelemetry-sdk ruff mypy 'pandas<3' fastavro &&
      "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/root/site" pyspark py4j || return 1
    printf '%s\n' /house/broker /house/connector /site > "$folder/root/usr/local/lib/python$version/dist-packages/pymq.pth"
    mkdir -p "$folder/root/house"
    touch "$folder/ready"
  fi
  # Mounts of a namespace of its own: they go with it.
  unshare --mount bash -c 'mount --rbind "$1" "$2/house" && mount --rbind /proc "$2/proc" && mount --rbind /dev "$2/dev" &&
    exec chroot "$2" env -C /house PATH=/site/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      PYTHONPYCACHEPREFIX=/pycache python3 -m pytest "${@:3}"' \
    bash "$root" "$folder/root" "${shared[@]}" -p no:cacheprovider "$@"
}

need_maven() {  # installs it where that is possible; false when there is none
  if ! command -v mvn >/dev/null && may_install; then
    apt_install maven || true
  fi
  command -v mvn >/dev/null
}

make_etcd() {  # unpacks Debian's etcd into .etcd; installed, it would run as a service
  if command -v etcd >/dev/null || [ -x .etcd/usr/bin/etcd ]; then
    return
  fi
  if may_install; then
    say "unpacking Debian's etcd-server into .etcd"
    local folder
    folder=$(mktemp -d)
    if [ -z "$apt_updated" ]; then
      apt-get update -qq >&2 || true
      apt_updated=yes
    fi
    (cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root etcd-server >&2 && dpkg-deb -x etcd-server_*.deb etcd) &&
      rm -rf .etcd && mv "$folder/etcd" .etcd || true
    rm -rf "$folder"
  fi
  [ -x .etcd/usr/bin/etcd ] ||
    say "no etcd, so tests of controllers with etcd are skipped: install it (Debian: apt-get install etcd-server)"
}

make_databases() {  # servers for the shop's tests, which start their own: Debian's must not run
  if ! { [ -n "$(find /usr/lib/postgresql -name initdb 2>/dev/null)" ] || command -v initdb >/dev/null; } && may_install; then
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
      mkdir -p /etc/postgresql-common
      echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
    fi
    apt_install postgresql || say "no PostgreSQL, so the shop's tests with it are skipped"
  fi
  if ! { command -v mariadbd || [ -x /usr/sbin/mariadbd ]; } >/dev/null && may_install; then
    apt_install mariadb-server-core mariadb-client-core || say "no MariaDB, so the shop's tests with it are skipped"
  fi
}

make_chromium() {  # for the tests of the shop's page; nothing else starts it
  if ! { command -v chromium || command -v chromium-browser; } >/dev/null && may_install; then
    apt_install chromium || say "no Chromium, so the tests of the shop's page in a browser are skipped"
  fi
}

# Several processes share the test files, for tests wait more than they compute, though JVMs do not.
# One: -n 0. In the order of their names, long ones come before the many short ones of tests/unit.
shared=(--dist loadfile --no-loadscope-reorder)

tests() {  # tests ARGUMENTS: those that need no Maven
  make_env
  make_etcd
  make_databases
  make_chromium
  "$python" tests/spark/compile_pyspark.py
  exec "$python" -m pytest -n 3 "${shared[@]}" -m "not interop and not bench" "$@"
}

interop() {
  make_env
  make_etcd
  need_docker
  if need_maven && [ -n "${JAVA_HOME:-}" ]; then
    "$python" tests/interop/jars.py --fetch all
  elif [ -n "${CI:-}" ]; then
    die "the live Java peers need Java 17 or 21 and Maven (Debian: apt-get install maven)"
  else
    say "without Java and Maven (Debian: apt-get install maven) the live Java peers are skipped"
  fi
  exec "$python" -m pytest -n 3 "${shared[@]}" tests/interop "$@"
}

crash() {
  make_env
  make_etcd
  make_databases
  export PYMQ_CRASH_ROUNDS=${PYMQ_CRASH_ROUNDS:-1000} PYMQ_HYPOTHESIS=${PYMQ_HYPOTHESIS:-long}
  export PYMQ_SHOP_ORDERS=${PYMQ_SHOP_ORDERS:-10000} PYMQ_TURNS=${PYMQ_TURNS:-all}
  # One test kills a thousand times: longer than any other may take.
  exec "$python" -m pytest tests/crash tests/shop -m crash -o faulthandler_timeout=14400 "$@"
}

lint() {
  make_env
  ruff check "$@"
  exec mypy
}

package() {
  make_env
  rm -rf build dist   # what an earlier build left in build/ would get into the wheel
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
  rm -rf build broker/*.egg-info
  local trial
  trial=$(mktemp -d)
  trap "rm -rf '$trial'" EXIT
  say "trying the wheel, without extras, in a fresh environment"
  "$python" -m venv "$trial/venv"
  "$trial/venv/bin/python" -m pip install --quiet --disable-pip-version-check dist/*.whl pytest
  mkdir "$trial/project"
  cp tests/wheel/bare.py "$trial/project/test_bare.py"
  # From outside the tree, so that nothing but the wheel can be imported.
  cd "$trial/project"
  PYMQ_SOURCE=$root "$trial/venv/bin/python" -m pytest -q
  ls -l "$root/dist"
}

need_docker() {  # installs engine and debootstrap where that is possible; starts nothing
  if may_install && ! { command -v dockerd && command -v debootstrap; } >/dev/null; then
    apt_install docker.io debootstrap || true
  fi
}

need_engine() {
  docker info >/dev/null 2>&1 ||
    die "no Docker engine answers (docker info): start one (Debian, as root: service docker start) or set DOCKER_HOST"
}

import_debian() {  # import_debian NAME PACKAGES: an image that stays for the next time; with commas
  if docker image inspect "$1" >/dev/null 2>&1; then
    return
  fi
  command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] ||
    die "the base of the image needs root and debootstrap (Debian: apt-get install debootstrap)"
  say "making $1, a Debian with ${2//,/, } (minutes, once)"
  local folder
  folder=$(mktemp -d)
  trap "rm -rf '$folder'" EXIT
  debootstrap --variant=minbase --include="$2" stable "$folder/debian" >"$folder/log" 2>&1 ||
    die "debootstrap failed: $(tail -n 3 "$folder/log")"
  rm -rf "$folder"/debian/var/{cache/apt,lib/apt/lists}/* "$folder"/debian/usr/share/{doc,man,locale}/*
  tar -C "$folder/debian" -c . | docker import - "$1" >/dev/null
  rm -rf "$folder"
}

image_databases() {  # the servers that the shop's tests start in containers
  need_docker
  need_engine
  import_debian pymq-databases postgresql,mariadb-server-core,mariadb-client-core
}

image() {  # image [NAME]: builds pymq, or NAME
  local name=${1:-pymq} folder version
  make_env
  need_docker
  need_engine
  import_debian pymq-base python3
  version=$(docker run --rm --network none pymq-base python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  folder=$(mktemp -d)
  trap "rm -rf '$folder'" EXIT
  rm -rf build
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" .
  rm -rf build broker/*.egg-info
  # Installed here, because a container that is being built may reach no package index.
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: \
    --python-version "$version" --target "$folder/site" "$(echo "$folder"/*.whl)[broker,cli]"
  rm -rf "$folder"/*.whl "$folder/site/bin"
  cp Dockerfile "$folder"
  docker build --quiet --network none --build-arg BASE=pymq-base --tag "$name" "$folder" \
    >"$folder/log" 2>&1 || die "$(cat "$folder/log")"
  say "built image $name, $(($(docker image inspect --format '{{.Size}}' "$name") >> 20)) MiB: docker run -p 9876:9876 -p 10911:10911 $name"
}

verb=${1:-help}
shift || true
case $verb in
  env) make_env ;;                          #: make .venv with everything installed; a Java for Spark
  demo) demo "$@" ;;                        #: the flights of New York through broker and Spark, checked
  shop) shop "$@" ;;                        #: a shop of six services, 1,000 orders, faults, and an audit
  test) tests "$@" ;;                       #: all tests that need no Maven
  interop) interop "$@" ;;                  #: tests against the official Java clients and brokers
  pythons) pythons "$@" ;;                  #: tests in newer Pythons, those of newer Debians; needs root
  spark-matrix) spark_matrix "$@" ;;        #: tests of the connector in each Spark from 4.0 on
  crash) crash "$@" ;;                      #: kill and break things for longer than `test` does
  bench) run "$python" -m tests.bench.run "$@" ;; #: speed and memory of broker and client, beside peers
  bench-spark) bench_spark "$@" ;;          #: speed of the Spark source and sink, beside Kafka's
  lint) lint "$@" ;;                        #: ruff, then mypy
  image) image "$@" ;;                      #: build the container image pymq; needs a Docker engine
  image-databases) image_databases ;;       #: an image with PostgreSQL and MariaDB, for tests of the shop
  package) package ;;                       #: build the wheel into dist/ and try it in a fresh environment
  help | -h | --help)                       #: this list
    echo 'usage: ./build.sh VERB [ARGUMENTS FOR ITS TOOL]'
    sed -n 's/^  \([a-z-]*\)[a-z |-]*) .*#: \(.*\)/  \1\t\2/p' "${BASH_SOURCE[0]##*/}" | expand -t 17
    ;;
  *) die "no verb '$verb'; ./build.sh help lists them" ;;
esac
