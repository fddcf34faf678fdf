#include "ceph_functions.hpp"

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>
#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error/detailed_error.hpp"

namespace rcverbs::nvme::detail {

namespace {

[[noreturn]] void refuse(std::string const& text) {
    char const* const why = ::dlerror();
    throw rcverbs::detail::detailed_error{
        error_code{ELIBACC, boost::system::system_category()},
        text + (why != nullptr ? std::string{": "} + why : std::string{})};
}

// Never unloaded: their threads may run at the end of the process.
void* load(char const* library, char const* package) {
    void* const made = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (made == nullptr)
        refuse(std::string{library} + " is missing (Debian's package " + package + ")");
    return made;
}

template <class Function>
void find(void* library, char const* name, Function& to) {
    to = reinterpret_cast<Function>(::dlsym(library, name));
    if (to == nullptr) refuse(std::string{"this Ceph is too old: no "} + name);
}

ceph_functions load_all() {
    ceph_functions all;
    void* const rados = load("librados.so.2", "librados2");
    void* const rbd = load("librbd.so.1", "librbd1");
    // NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define RCVERBS_FIND(name) find(library, #name, all.name);
    void* library = rados;
    RCVERBS_RADOS_FUNCTIONS(RCVERBS_FIND)
    library = rbd;
    RCVERBS_RBD_FUNCTIONS(RCVERBS_FIND)
#undef RCVERBS_FIND
    return all;
}

}  // namespace

// Never destroyed, as stores may outlive it.
struct ceph_uses {
    static ceph_uses& instance() {
        static auto* const all = new ceph_uses;
        return *all;
    }
    using state = ceph_use::state;

    static bool is_closed(ceph_use const& u) { return u.state_ == state::closed; }
    // True if it was open.
    static bool begin(ceph_use& u) {
        bool const was_open = u.state_ == state::open;
        if (was_open) u.state_ = state::closing;
        return was_open;
    }
    void end(ceph_use& u) {
        u.state_ = state::closed;
        std::erase(all, &u);
        changed.notify_all();
    }
    void end_process() {
        std::unique_lock lock{mutex};
        is_over = true;
        while (!all.empty()) {
            auto const left = std::ranges::find_if(all, [](ceph_use* u) { return begin(*u); });
            if (left == all.end()) {  // other threads close the rest
                changed.wait(lock);
                continue;
            }
            ceph_use& one = **left;
            lock.unlock();
            one.close_();
            lock.lock();
            end(one);
        }
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<ceph_use*> all;
    bool is_over = false;
};

namespace {

// What is made after the libraries were loaded is destroyed before their objects.
struct at_exit {
    at_exit() = default;
    at_exit(at_exit const&) = delete;
    at_exit& operator=(at_exit const&) = delete;
    ~at_exit() { ceph_uses::instance().end_process(); }
};

}  // namespace

ceph_functions const& ceph() {
    static ceph_functions const all = load_all();
    static at_exit const last;
    return all;
}

ceph_use::ceph_use(std::function<void()> close) : close_{std::move(close)} {
    ceph();  // before the end of the process may wait for this one
    ceph_uses& u = ceph_uses::instance();
    std::lock_guard const lock{u.mutex};
    if (u.is_over) throw boost::system::system_error{boost::asio::error::operation_aborted};
    u.all.push_back(this);
}
bool ceph_use::begin_close() noexcept {
    ceph_uses& u = ceph_uses::instance();
    std::unique_lock lock{u.mutex};
    if (ceph_uses::begin(*this)) return true;
    u.changed.wait(lock, [this] { return ceph_uses::is_closed(*this); });
    return false;
}
void ceph_use::end() noexcept {
    ceph_uses& u = ceph_uses::instance();
    std::lock_guard const lock{u.mutex};
    u.end(*this);
}

}  // namespace rcverbs::nvme::detail
