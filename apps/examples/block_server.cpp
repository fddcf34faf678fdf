// block_server: serves a file as blocks, by requests. Its source has no Asio: each of its threads waits for a request, reads or writes the
// file, and answers. Clients: nbdkit_plugin, and block_client.py.
//
//     block_server ADDRESS PORT FILE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <rcverbs/experimental/calls.hpp>

#include "examples/block_protocol.hpp"

namespace calls = rcverbs::calls;

namespace {

// All of it, or an errno.
template <class Call, class Bytes>
int transfer(Call call, int file, Bytes* at, std::size_t size, std::uint64_t offset) {
    while (size > 0) {
        ssize_t const n = call(file, at, size, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EINVAL;
        at += n;
        size -= static_cast<std::size_t>(n);
        offset += static_cast<std::uint64_t>(n);
    }
    return 0;
}

void answer(calls::request& r, int file, std::uint64_t file_bytes, std::vector<std::byte>& buffer) {
    block::range range;
    std::size_t const head_bytes = std::min(r.head().size(), sizeof range);
    std::memcpy(&range, r.head().data(), head_bytes);
    // What a client sends is not trusted.
    bool const is_inside = range.bytes <= block::bytes_max && range.offset <= file_bytes && range.bytes <= file_bytes - range.offset;
    switch (r.operation()) {
    case block::size: {
        boost::endian::big_uint64_t const size{file_bytes};
        return r.answer(rcverbs::answer{0}.body(std::span{&size, 1}));
    }
    case block::read: {
        int const error = is_inside ? transfer(::pread, file, buffer.data(), range.bytes, range.offset) : EINVAL;
        auto const data = std::span{buffer}.first(error == 0 ? range.bytes.value() : 0);
        return r.answer(rcverbs::answer{static_cast<std::uint32_t>(error)}.body(data));
    }
    case block::write: {
        bool const is_right = is_inside && r.bytes().size() == range.bytes;
        int const error = is_right ? transfer(::pwrite, file, r.bytes().data(), range.bytes, range.offset) : EINVAL;
        return r.answer(rcverbs::answer{static_cast<std::uint32_t>(error)});
    }
    case block::flush: return r.answer(rcverbs::answer{static_cast<std::uint32_t>(::fdatasync(file) == 0 ? 0 : errno)});
    default: return r.answer(rcverbs::answer{ENOSYS});
    }
}

void serve(calls::server& server, int file, std::uint64_t file_bytes) {
    std::vector<std::byte> buffer(block::bytes_max);
    for (;;) {
        calls::request r = server.next();
        if (!r.is_valid()) return;
        try {
            answer(r, file, file_bytes, buffer);
        } catch (boost::system::system_error const& e) {
            std::cerr << "block_server: a client has left: " << e.what() << '\n';
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::uint16_t port = 0;
    std::string_view const number = argc == 4 ? argv[2] : "";
    if (std::from_chars(number.data(), number.data() + number.size(), port).ec != std::errc{}) {
        std::cerr << "usage: block_server ADDRESS PORT FILE\n";
        return 2;
    }
    int const file = ::open(argv[3], O_RDWR | O_CLOEXEC);
    struct stat s {};
    if (file < 0 || ::fstat(file, &s) != 0) {
        std::cerr << "block_server: " << argv[3] << ": " << std::strerror(errno) << '\n';
        return 1;
    }
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGINT);
    ::sigaddset(&signals, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    try {
        calls::server server{{argv[1], port}};
        std::cout << "serving " << argv[3] << " at " << server.local_endpoint() << std::endl;
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) threads.emplace_back([&] { serve(server, file, static_cast<std::uint64_t>(s.st_size)); });
        int signal = 0;
        ::sigwait(&signals, &signal);
        server.close();  // the clients repeat what is not answered at the next server
        for (std::thread& t : threads) t.join();
    } catch (boost::system::system_error const& e) {
        std::cerr << "block_server: " << e.what() << '\n';
        return 1;
    }
}
