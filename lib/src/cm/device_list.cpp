#include "cm/device_list.hpp"

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include "verbs/errno_map.hpp"

namespace rcverbs::cm {

namespace {

// librdmacm opens all devices when it lists them, and never again uses one that it could not open: so
// there must be descriptors for all, three for each.
error_code check_descriptors() noexcept {
    int count = 0;
    ibv_device** const all = ibv_get_device_list(&count);
    if (error_code const ec = verbs::or_out_of_descriptors(verbs::from_pointer(all))) return ec;
    ibv_free_device_list(all);
    bool const are_free =
        verbs::has_free_descriptors(3 * static_cast<unsigned>(std::max(count, 1)));
    return are_free ? error_code{} : error_code{EMFILE, boost::system::system_category()};
}

using device_list = std::shared_ptr<ibv_context*>;

// A context that is in use, and a list that it is in: as long as the list exists, it stays open.
// Source: rdma_get_devices(3).
struct open_device {
    explicit open_device(device_list l) noexcept : list{std::move(l)} {}

    device_list list;
};

struct open_devices {
    std::mutex mutex;
    std::map<ibv_context*, std::weak_ptr<open_device>> by_context;
};

open_devices& all_devices() {
    static auto& all = *new open_devices;  // never destroyed: connections may outlive statics
    return all;
}

// With the mutex held.
verbs::device_context share(open_devices& all, ibv_context* context, device_list const& list) {
    std::weak_ptr<open_device>& known = all.by_context[context];
    std::shared_ptr<open_device> device = known.lock();
    if (device == nullptr) known = device = std::make_shared<open_device>(list);
    return {device, context};
}

// Lists the devices, and shares the one that is meant; null without an error if there is none. With the
// mutex held.
template <class Predicate>
verbs::device_context find(open_devices& all, Predicate const& is_meant, error_code& ec) {
    ec.clear();
    std::erase_if(all.by_context, [](auto const& each) { return each.second.expired(); });
    ec = check_descriptors();
    if (ec) return nullptr;
    ibv_context** const raw = rdma_get_devices(nullptr);
    ec = verbs::or_out_of_descriptors(verbs::from_pointer(raw));
    if (ec == boost::system::errc::no_such_device) ec.clear();
    ec = verbs::or_unavailable(ec);
    if (raw == nullptr) return nullptr;
    device_list const list{raw, &rdma_free_devices};
    verbs::device_context found;
    for (ibv_context** each = raw; *each != nullptr; ++each) {
        // An older list would keep devices open that are not there any more.
        auto const known = all.by_context.find(*each);
        if (known != all.by_context.end()) {
            if (auto const device = known->second.lock()) device->list = list;
        }
        if (is_meant(*each)) found = share(all, *each, list);
    }
    return found;
}

}  // namespace

verbs::device_context keep_open(ibv_context* device, error_code& ec) {
    open_devices& all = all_devices();
    std::lock_guard const lock{all.mutex};
    ec.clear();
    if (auto const known = all.by_context.find(device); known != all.by_context.end()) {
        if (auto alive = known->second.lock()) return {std::move(alive), device};
    }
    verbs::device_context found = find(
        all, [=](ibv_context* each) { return each == device; }, ec
    );
    if (found == nullptr && !ec) ec = errc::device_removed;
    return found;
}

verbs::device_context find_device(std::string const& name, error_code& ec) {
    open_devices& all = all_devices();
    std::lock_guard const lock{all.mutex};
    auto const has_name = [&](ibv_context* each) {
        return name == ibv_get_device_name(each->device);
    };
    verbs::device_context found = find(all, has_name, ec);
    if (found == nullptr && !ec) ec = errc::no_rdma_device;
    return found;
}

}  // namespace rcverbs::cm
