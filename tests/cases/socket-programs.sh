#!/usr/bin/env bash
# Real programs over the socket library at both ends, at one, and with one end killed in the middle: iperf3, redis, nginx and wrk,
# nginx and haproxy as proxies, Python's web server, curl, socat, memcached, asyncio, openssl. What is to go through shared memory has gone there, and what cannot went through the kernel.
. "$(dirname "$0")/../lib.sh"
. "$tests/socket.sh"
needs iperf3 redis-server redis-benchmark redis-cli nginx wrk curl socat memcached haproxy openssl /usr/bin/python3 cmp
mkdir "$scratch/www" "$scratch/redis"
head -c 20000000 /dev/urandom >"$scratch/www/big"
echo hello >"$scratch/www/small"
port=18800

# serve NAME LIBRARY COMMAND...: in the background, until it listens on $port.
serve() {
    local name=$1
    shift
    background "$name" with "$@"
    server=$started
    await 10 listens $port || fail "$name does not listen: $(tail -n 3 "$scratch/$name.log")"
}

# quit SIGNAL: ends the server.
quit() {
    kill -"$1" "$server"
    ended "$server" 10
}

# went FROM TO: whether a program has sent so many bytes, at least, through rings.
went() {
    local sent
    sent=$(counted "$1" sent)
    if [ "$both" = yes ]; then
        [ "$sent" -ge "$2" ] || fail "$1 has sent $sent bytes through shared memory, not $2: $(cat "$scratch/stats")"
    else
        [ "$sent" = 0 ] || fail "$1 has sent $sent bytes through shared memory, to nobody who has it"
    fi
    [ "$(counted "$1" malformed)" = 0 ] || fail "$1 has read nonsense"
}

iperf() {
    local options
    for options in "" "-R" "-P 4" "--bidir"; do
        port=$((port + 1))
        serve iperf "$1" iperf3 -s -1 -p $port
        # shellcheck disable=SC2086
        (with "$2" timeout 60 iperf3 -c 127.0.0.1 -p $port -t 1 --json $options) >"$scratch/iperf.json" ||
            fail "iperf3 $options: $(tail -n 5 "$scratch/iperf.json")"
        ended "$server" 10
    done
    went iperf3 100000000
}

redis() {
    port=$((port + 1))
    serve redis "$1" redis-server --port $port --save "" --dir "$scratch/redis"
    for options in "-n 20000" "-n 50000 -P 16" "-n 2000 -d 100000" "-n 2000 -c 500"; do
        # shellcheck disable=SC2086
        (with "$2" timeout 60 redis-benchmark -p $port -t set,get -q $options) >"$scratch/redis.txt" 2>&1 ||
            fail "redis-benchmark $options: $(tail -n 5 "$scratch/redis.txt")"
    done
    (with "$2" redis-cli -p $port set key "$(printf '%0100000d' 7)") >/dev/null || fail "redis-cli set"
    [ "$( (with "$2" redis-cli -p $port get key) | wc -c)" = 100001 ] || fail "redis-cli get"
    quit TERM
    went redis-server 100000000
}

web() {
    port=$((port + 1))
    serve http "$1" /usr/bin/python3 -m http.server $port --bind 127.0.0.1 --directory "$scratch/www"
    fetch "$2"
    (with "$2" /usr/bin/python3 -c 'import sys, urllib.request as web
sys.stdout.buffer.write(web.urlopen(sys.argv[1]).read())' "http://127.0.0.1:$port/big") | cmp - "$scratch/www/big" || fail "urllib"
    quit INT
    went python3 40000000

    port=$((port + 1))
    cat >"$scratch/nginx.conf" <<END
$(! is_root || echo "user root;")
worker_processes 2; daemon off; pid $scratch/nginx.pid; error_log $scratch/nginx-error.log;
events { worker_connections 1000; }
http {
    access_log off; sendfile $3; client_body_temp_path $scratch/t1; proxy_temp_path $scratch/t2; fastcgi_temp_path $scratch/t3;
    uwsgi_temp_path $scratch/t4; scgi_temp_path $scratch/t5;
    server { listen 127.0.0.1:$port reuseport; root $scratch/www; }
}
END
    serve nginx "$1" nginx -e "$scratch/nginx-error.log" -c "$scratch/nginx.conf"
    fetch "$2"
    (with "$2" timeout 60 wrk -t 2 -c 50 -d 1 "http://127.0.0.1:$port/small") >"$scratch/wrk.txt" || fail "wrk"
    ! grep -E "Socket errors|Non-2xx" "$scratch/wrk.txt" || fail "wrk: $(cat "$scratch/wrk.txt")"
    quit QUIT
    went nginx 20000000
    proxy "$@"
}

# nginx before another web server: it puts its sockets in an epoll, and connects them then.
proxy() {
    local front=$((port + 2)) behind=$((port + 1)) before
    port=$behind
    serve http "$1" /usr/bin/python3 -m http.server $port --bind 127.0.0.1 --directory "$scratch/www"
    local http=$server
    port=$front
    cat >"$scratch/proxy.conf" <<END
$(! is_root || echo "user root;")
worker_processes 1; daemon off; pid $scratch/proxy.pid; error_log $scratch/proxy-error.log;
events { worker_connections 1000; }
http {
    access_log off; client_body_temp_path $scratch/p1; proxy_temp_path $scratch/p2; fastcgi_temp_path $scratch/p3;
    uwsgi_temp_path $scratch/p4; scgi_temp_path $scratch/p5;
    server { listen 127.0.0.1:$front reuseport; location / { proxy_pass http://127.0.0.1:$behind; } }
}
END
    before=$(counted nginx met)
    serve proxy "$2" nginx -e "$scratch/proxy-error.log" -c "$scratch/proxy.conf"
    # Here, the client has no library: what nginx has met is the server behind it.
    for _ in 1 2 3; do fetch -; done
    [ "$(curl -sS "http://127.0.0.1:$port/small")" = hello ] || fail "nginx as a proxy"
    quit QUIT
    server=$http
    quit INT
    [ $(($(counted nginx met) - before)) = "$([ "$both" = yes ] && echo 4 || echo 0)" ] ||
        fail "nginx as a proxy has not met the server behind it: $(cat "$scratch/stats")"
}

fetch() {
    (with "$1" timeout 60 curl -sS "http://127.0.0.1:$port/big") | cmp - "$scratch/www/big" || fail "curl"
}

relay() {
    local how
    for how in "EXEC:cat" "EXEC:cat,nofork" "SYSTEM:cat"; do
        port=$((port + 1))
        serve socat "$1" socat "TCP-LISTEN:$port,reuseaddr,fork,bind=127.0.0.1" "$how"
        (with "$2" timeout 60 socat -t 10 - "TCP:127.0.0.1:$port" <"$scratch/www/big") | cmp - "$scratch/www/big" || fail "socat $how"
        kill "$server"
        ended "$server" 10
    done
    went socat 40000000
    # A shell connects, and programs that it starts read and write.
    port=$((port + 1))
    serve socat "$1" socat "TCP-LISTEN:$port,reuseaddr,fork,bind=127.0.0.1" "EXEC:cat"
    [ "$( (with "$2" timeout 20 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port; /bin/echo hello >&3; head -n 1 <&3"))" = hello ] || fail "bash"
    kill "$server"
    ended "$server" 10
}

# haproxy before another web server.
balance() {
    local behind=$((port + 1)) front=$((port + 2)) http
    port=$behind
    serve http "$1" /usr/bin/python3 -m http.server $port --bind 127.0.0.1 --directory "$scratch/www"
    http=$server
    port=$front
    cat >"$scratch/haproxy.cfg" <<END
defaults
    mode http
    timeout connect 10s
    timeout client 10s
    timeout server 10s
listen front
    bind 127.0.0.1:$front
    server behind 127.0.0.1:$behind
END
    serve haproxy "$2" haproxy -db -f "$scratch/haproxy.cfg"
    # With the library it meets the server behind it at both ends, and who asks only the first three times.
    for _ in 1 2 3; do fetch "$2"; done
    [ "$(curl -sS "http://127.0.0.1:$port/small")" = hello ] || fail "haproxy"
    quit USR1
    server=$http
    quit INT
    [ "$both" = no ] || [ "$(counted haproxy met)" = 7 ] || fail "haproxy has not met all: $(cat "$scratch/stats")"
}

# Questions and answers: a server with threads, and one with an event loop.
talk() {
    port=$((port + 1))
    serve memcached "$1" memcached -u "$(id -un)" -U 0 -l 127.0.0.1 -p $port -t 2
    (with "$2" timeout 60 /usr/bin/python3 "$tests/socket/talk.py" memcached $port) || fail "memcached"
    quit TERM
    went memcached 10000000
    port=$((port + 1))
    serve asyncio "$1" /usr/bin/python3 "$tests/socket/talk.py" serve $port
    (with "$2" timeout 60 /usr/bin/python3 "$tests/socket/talk.py" ask $port) || fail "asyncio"
    quit TERM
}

# TLS, which is the program's own: files of the server, and bytes that both ends send at once.
secret() {
    port=$((port + 1))
    background tls in_www "$1" openssl s_server -WWW -naccept 1 -accept 127.0.0.1:$port -cert "$scratch/pem" -key "$scratch/pem"
    server=$started
    await 10 listens $port || fail "openssl s_server does not listen: $(tail -n 3 "$scratch/tls.log")"
    (with "$2" timeout 60 curl -sSk "https://127.0.0.1:$port/big") | cmp - "$scratch/www/big" || fail "openssl s_server -WWW"
    ended "$server" 10

    port=$((port + 1))
    background tls gets "$1" openssl s_server -quiet -naccept 1 -accept 127.0.0.1:$port -cert "$scratch/pem" -key "$scratch/pem"
    server=$started
    await 10 listens $port || fail "openssl s_server does not listen: $(tail -n 3 "$scratch/tls.log")"
    gets "$2" timeout 60 openssl s_client -quiet -connect 127.0.0.1:$port >"$scratch/tls.got" 2>"$scratch/tls.err" ||
        fail "openssl s_client: $(tail -n 3 "$scratch/tls.err")"
    ended "$server" 10
    cmp "$scratch/tls.got" "$scratch/www/big" || fail "openssl s_client"
    cmp "$scratch/tls.out" "$scratch/www/big" || fail "openssl s_server"
    went openssl 20000000
}

in_www() {
    cd "$scratch/www" || return
    with "$@"
}

# gets LIBRARY COMMAND...: the command with a file to read, whose end comes when the other end has had the time to send its own.
gets() {
    { cat "$scratch/www/big"; sleep 2; } | (with "$@")
}

# One end is killed while bytes go: the other one ends, soon.
killed() {
    local victim round
    for round in server client; do
        port=$((port + 1))
        serve iperf "$library" iperf3 -s -1 -p $port
        background client with "$library" timeout 60 iperf3 -c 127.0.0.1 -p $port -t 30
        client=$started
        sleep 1
        victim=$server
        [ "$round" = server ] || victim=$(pgrep -P "$client" iperf3)
        kill -KILL "$victim"
        ended "$server" 10
        ended "$client" 10
    done
}

openssl req -x509 -newkey rsa:2048 -nodes -keyout "$scratch/key" -out "$scratch/certificate" -days 2 -subj /CN=localhost 2>"$scratch/req.err" ||
    fail "openssl req: $(tail -n 3 "$scratch/req.err")"
cat "$scratch/key" "$scratch/certificate" >"$scratch/pem"

for who in both server client; do
    both=no first=$library second=$library
    case $who in both) both=yes ;; server) second=- ;; client) first=- ;; esac
    rm -f "$scratch/stats"
    iperf "$first" "$second"
    redis "$first" "$second"
    web "$first" "$second" "$([ "$who" = both ] && echo on || echo off)"
    relay "$first" "$second"
    balance "$first" "$second"
    talk "$first" "$second"
    secret "$first" "$second"
    echo "$who: iperf3, redis, nginx, nginx as a proxy, wrk, http.server, curl, socat, haproxy, memcached, asyncio, openssl"
done
rm -f "$scratch/stats"
killed
# Nothing is left of what was offered.
folder=/dev/shm/millrace-streams-$(id -u)
echo "a killed end is noticed; $(find "$folder" -type l | wc -l) links are left for the next process to remove"
