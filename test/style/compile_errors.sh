#!/usr/bin/env bash
# compile_errors.sh COMPILER INCLUDE_FOLDER...: what users get wrong most is one error that says what is right.
set -euo pipefail
compiler=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
includes=()
for folder in "$@"; do includes+=("-I$folder"); done

compile() { # compile NAME BODY: what the compiler says about a function with that body, and its status
    cat >"$work/$1.cpp" <<CPP
#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <array>
#include <list>
#include <string>
#include <string_view>
#include <vector>
using namespace rcverbs;
using boost::asio::use_awaitable;
struct point { int x; int y; };
boost::asio::awaitable<void> f(request_channel& c, request_client& k, message_channel& m, connection& n, request& r, registered_buffer& b, remote_region t) {
$2
    co_return;
}
CPP
    "$compiler" -std=c++20 -fsyntax-only -DBOOST_ASIO_SEPARATE_COMPILATION "${includes[@]}" "$work/$1.cpp" >"$work/$1.log" 2>&1
}

works() {
    compile "$1" "$2" || { echo "FAILED: $1 does not compile"; head -30 "$work/$1.log"; return 1; }
}
fails() { # fails NAME BODY TEXT: with one error, which says TEXT
    if compile "$1" "$2"; then echo "FAILED: $1 compiles"; return 1; fi
    [ "$(grep -c 'error:' "$work/$1.log")" = 1 ] && grep -q "error:.*rcverbs: $3" "$work/$1.log" ||
        { echo "FAILED: $1"; grep 'error:' "$work/$1.log"; return 1; }
}

works bodies '
    std::string const text = "hello";
    std::vector<int> const numbers{1, 2, 3};
    std::vector<point> const points(2);
    std::array const both{b.slice(), b.slice()};
    point const one{1, 2};
    co_await m.async_send(text, 0, use_awaitable);
    co_await m.async_send(b.slice(), 0, use_awaitable);
    co_await m.async_send({}, 0, use_awaitable);
    co_await c.async_request(1, numbers, use_awaitable);
    co_await c.async_request(1, both, use_awaitable);
    co_await c.async_request(ask{1}.head(text).body(points), use_awaitable);
    co_await c.async_request(ask{1}.head(std::span{&one, 1}).body(b.slice()), use_awaitable);
    co_await c.async_notify(1, std::string_view{"literal"}, use_awaitable);
    co_await c.async_notify(ask{1}.head(std::span{&one, 1}).body(both), use_awaitable);
    co_await k.async_request(1, text, use_awaitable);
    co_await k.async_notify(1, points, use_awaitable);
    co_await r.async_answer(0, text, use_awaitable);
    co_await r.async_answer(answer{0}.head(text).body(both), use_awaitable);
    co_await r.async_answer(0, {}, use_awaitable);' &
fails list_of_strings 'std::list<std::string> const all; co_await c.async_request(1, all, use_awaitable);' 'a body is' || exit 1
wait $! || exit 1
fails literal 'co_await m.async_send("hello", 0, use_awaitable);' 'a body is' &
fails list_in_value 'std::list<std::string> const all; co_await c.async_request(ask{1}.body(all), use_awaitable);' 'a body is' || exit 1
fails pointers 'std::vector<int*> const all; co_await r.async_answer(0, all, use_awaitable);' 'a body is' || exit 1
wait $! || exit 1
fails handler 'n.async_write(b, t, [](int) {});' 'the completion token, or handler, does not fit' &
fails reply 'c.async_request(1, b.slice(), [](error_code, std::string) {});' 'the completion token, or handler, does not fit' || exit 1
wait $! || exit 1
echo passed
