// nbdkit_plugin: a plugin of nbdkit(1) that serves the blocks of a block_server as NBD. Its source has no Asio, and nbdkit may load it and
// fork into the background afterwards: the library starts its thread with the first request.
//
//     nbdkit ./example-nbdkit_plugin.so address=192.168.0.1 port=7471
//
// While the server is restarted, reads, writes and flushes wait. They are repeated: the server finishes with a client's old requests before
// it takes new ones, and what it has written is in the kernel, which a flush of its next process writes to the disk.
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include <rcverbs/experimental/calls.hpp>

#include "examples/block_protocol.hpp"

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

namespace {

using namespace std::chrono_literals;
namespace calls = rcverbs::calls;

std::string address;
std::uint16_t port = 7471;
std::unique_ptr<calls::client> client;

int configure(char const* key, char const* value) {
    std::string_view const text = value;
    if (key == std::string_view{"address"}) {
        address = text;
        return 0;
    }
    bool const is_port = key == std::string_view{"port"};
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (is_port && error == std::errc{} && end == text.data() + text.size()) return 0;
    nbdkit_error("%s=%s: not address=IP or port=NUMBER", key, value);
    return -1;
}

// Calls a function that throws; -1 after an error, which nbdkit has then.
template <class Function>
int guarded(Function f) {
    try {
        int const error = f();
        if (error == 0) return 0;
        nbdkit_set_error(error);
        nbdkit_error("the server: %s", std::strerror(error));
    } catch (std::exception const& e) {
        nbdkit_set_error(EIO);
        nbdkit_error("%s", e.what());
    }
    return -1;
}

int make_client() {
    return guarded([] {
        client = std::make_unique<calls::client>(rcverbs::endpoint{address, port});
        return 0;
    });
}

rcverbs::ask ask_for(block::operation what, std::uint32_t bytes = 0, std::uint64_t offset = 0) {
    block::range range;
    range.offset = offset;
    range.bytes = bytes;
    rcverbs::ask ask{what};
    return ask.head(std::span{&range, 1}).within(60s).may_repeat();
}

int64_t size_of_disk(void*) {
    boost::endian::big_uint64_t size = 0;
    int const failed = guarded([&] {
        calls::reply const r = client->request(ask_for(block::size));
        if (r.bytes.size() != sizeof size) return EPROTO;
        std::memcpy(&size, r.bytes.data(), sizeof size);
        return 0;
    });
    return failed != 0 ? -1 : static_cast<int64_t>(size.value());
}

int read_from(void*, void* to, std::uint32_t bytes, std::uint64_t offset, std::uint32_t) {
    return guarded([&] {
        calls::reply const r = client->request(ask_for(block::read, bytes, offset));
        if (r.status == 0 && r.bytes.size() != bytes) return EPROTO;
        std::memcpy(to, r.bytes.data(), r.bytes.size());
        return static_cast<int>(r.status);
    });
}

int write_to(void*, void const* from, std::uint32_t bytes, std::uint64_t offset, std::uint32_t) {
    return guarded([&] {
        std::span const data{static_cast<std::byte const*>(from), bytes};
        return static_cast<int>(client->request(ask_for(block::write, bytes, offset).body(data)).status);
    });
}

int flush(void*, std::uint32_t) {
    return guarded([] { return static_cast<int>(client->request(ask_for(block::flush)).status); });
}

nbdkit_plugin plugin = [] {
    nbdkit_plugin p{};
    p.name = "rcverbs";
    p.longname = "rcverbs block server";
    p.config = configure;
    p.config_help = "address=IP (required), port=NUMBER";
    p.magic_config_key = "address";
    p.after_fork = make_client;
    p.unload = [] { client.reset(); };
    p.open = [](int) -> void* { return NBDKIT_HANDLE_NOT_NEEDED; };
    p.get_size = size_of_disk;
    p.pread = read_from;
    p.pwrite = write_to;
    p.flush = flush;
    p.can_multi_conn = [](void*) { return 1; };
    p.block_size = [](void*, std::uint32_t* least, std::uint32_t* preferred, std::uint32_t* most) {
        *least = 1;
        *preferred = 65536;
        *most = block::bytes_max;
        return 0;
    };
    return p;
}();

}  // namespace

NBDKIT_REGISTER_PLUGIN(plugin)
