#include <algorithm>
#include <memory>

#include "controller.hpp"
#include "fuzz/targets.hpp"

namespace fuzz {

namespace {

namespace nvme = rcverbs::nvme;
using namespace rcverbs::nvme::detail;

class no_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override { return {1 << 20, 512, true, false}; }
    void start(nvme::store_request& r) override { r.complete({}); }
};

std::shared_ptr<subsystem> disks() {
    nvme::subsystem_options o;
    o.nqn = "nqn.fuzz";
    o.namespaces.resize(3);
    for (std::uint32_t id = 1; auto& n : o.namespaces) {
        n.id = id++;
        n.store = std::make_shared<no_store>();
    }
    return std::make_shared<subsystem>(std::move(o));
}

}  // namespace

void nvme_controller(bytes in) {
    constexpr std::size_t step = command_bytes + 2;
    static std::shared_ptr<subsystem> const served = disks();
    bool const is_discovery = !in.empty() && (in[0] & std::byte{1}) != std::byte{0};
    static std::shared_ptr<subsystem> const discovery = subsystem::discovery();
    controller c{1, is_discovery ? discovery : served, {"nqn.host", {}}, {}};
    c.discover = [] { return discovery_list{1, {{"nqn.fuzz", "10.0.0.1", 4420, false, false}}}; };
    std::size_t waiting = 0;
    for (std::size_t at = 0; at + step <= in.size(); at += step) {
        command const next = command::decode(in.subspan(at, command_bytes));
        std::vector<std::byte> out(load<std::uint16_t>(in, at + command_bytes) % 8192);
        auto const done = c.execute(next, {}, out);
        if (!done) {
            // Only requests for events wait, and not more than were announced.
            must(next.code == opcode::async_event);
            must(++waiting <= 4);
        } else {
            std::array<std::byte, completion_bytes> answer{};
            done->encode(answer, next.id, 0, 0);
            must(load<std::uint16_t>(answer, 12) == next.id);
            // Disabling the controller drops what waits.
            if (next.code == opcode::fabrics && !c.is_enabled()) waiting = 0;
        }
        if (next.id % 4 == 0 && c.on_namespace_change(next.id % 5)) --waiting;
    }
}

}  // namespace fuzz
