// Starts the network of a program when it first uses RDMA. What `rcverbs-fabric run` was asked for
// is in the environment; a program that was started without it is a node of its own.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

#include "mesh.hpp"
#include "settings.hpp"

namespace rcverbs::fabric::detail {

namespace {

std::mutex starting;
bool has_failed = false;

// Never destroyed: threads of the program may use it until the process ends, and the kernel releases
// what other processes see of it.
network* started = nullptr;

// How long a process that ends waits for others to take what it has sent. A device has sent it by then.
constexpr std::chrono::seconds last_sending_max{1};
void await_sent() {
    if (started != nullptr) started->await_sent(last_sending_max);
}

void start() {
    settings const s = settings::of_environment();
    directory where =
        s.directory_path.empty() ? directory::of_network(s.network) : directory{s.directory_path};
    std::uint32_t node = s.node;
    // Held for ever, as the network is.
    static directory::member own;
    if (node == 0) {
        own = where.take_node();
        node = own.number;
    }
    world_options options;
    options.mode = scheduling::real;
    options.seed = s.seed;
    for (std::uint32_t i = 0; i < s.devices; ++i) {
        device_options d;
        d.name = "fab" + std::to_string(i);
        d.addresses = addresses_of(node, i);
        d.path_mtu_bytes = 4096;
        d.completion_queue_depth_max = 1 << 22;  // as adapters have; some programs ask for 2^18
        options.devices.push_back(std::move(d));
    }
    auto* const made = new network{std::move(options), [&](network& n) {
                                       return std::make_unique<mesh>(n, std::move(where), node, s);
                                   }};
    // Locally administered, and unlike those of other nodes.
    for (std::size_t i = 0; i < made->devices.size(); ++i)
        made->devices[i]->guid = 0x0200'0077'0000'0000U | node << 8 | i;
    started = made;
    std::atexit(await_sent);
}

network* start_once() noexcept {
    std::lock_guard const lock{starting};
    if (has_failed || started != nullptr) return started;
    try {
        start();
    } catch (std::exception const& e) {
        has_failed = true;
        if (auto const* const coded = dynamic_cast<std::system_error const*>(&e)) {
            int const number = coded->code().value();
            for (int const resource : {EMFILE, ENFILE, ENOMEM, EAGAIN})
                if (number == resource) network::set_missing(number);
        }
        std::fprintf(stderr, "rcverbs-fabric: there are no devices: %s\n", e.what());
    }
    return started;
}

// A child has none of the threads that its parent's network needs. What it inherited is unusable.
void forget() noexcept {
    network::forget();
    started = nullptr;
    has_failed = false;
    new (&starting) std::mutex;  // another thread of the parent may have held it
}

[[gnu::constructor]] void prepare() {
    network::set_starter(start_once);
    ::pthread_atfork(nullptr, nullptr, forget);
}

}  // namespace

}  // namespace rcverbs::fabric::detail
