// The examples at the top of the public headers of the NVMe target. Compiled, so that they are right; never called.
#include <boost/asio/io_context.hpp>
#include <rcverbs/nvme/file_store.hpp>
#include <rcverbs/nvme/memory_store.hpp>
#include <rcverbs/nvme/target.hpp>

#include <memory>

namespace nvme = rcverbs::nvme;
using namespace rcverbs::nvme;

// --- block_store.hpp
class my_store final : public nvme::block_store {
    nvme::store_geometry geometry() const override { return {.size_bytes = 1 << 30}; }
    void start(nvme::store_request& r) override { r.complete({}); }
};

// --- file_store.hpp
void in_file_store() {
    namespace_options disk;
    disk.store = std::make_shared<file_store>("/srv/disk.img");
}

// --- memory_store.hpp
void in_memory_store() {
    namespace_options disk;
    disk.store = std::make_shared<memory_store>(std::uint64_t{1} << 30);
}

// --- target.hpp
void in_target(boost::asio::io_context& io) {
    nvme::subsystem_options disk{
        .nqn = "nqn.2026-01.org.example:disk",
        .namespaces = {{.id = 1, .store = std::make_shared<nvme::memory_store>(1 << 30)}}};
    nvme::target target{io, {"0.0.0.0", 4420}, {std::move(disk)}};
}

int main() {}
