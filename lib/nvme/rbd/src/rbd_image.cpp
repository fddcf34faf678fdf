#include "rbd_image.hpp"

#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include <rcverbs/error.hpp>

#include "error/detailed_error.hpp"

namespace rcverbs::nvme::detail {

namespace {

[[noreturn]] void refuse(int result, std::string text) {
    throw rcverbs::detail::detailed_error{
        error_code{-result, boost::system::system_category()}, std::move(text)};
}

std::string text_of(int result) {
    return error_code{-result, boost::system::system_category()}.message();
}

constexpr char const* no_answer = "the cluster does not answer";

void set(void* cluster, char const* option, std::string const& value) {
    if (int const r = ceph().rados_conf_set(cluster, option, value.c_str()); r < 0)
        refuse(r, std::string{"Ceph's option "} + option + " = " + value + ": " + text_of(r));
}

}  // namespace

rbd_name parse_rbd_name(std::string const& text) {
    auto const wrong = [&text] {
        throw rcverbs::detail::detailed_error{
            make_error_code(errc::invalid_option),
            "\"" + text + "\" is not [USER@]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]"};
    };
    rbd_name n;
    std::string rest = text;
    auto const before = [&rest](std::size_t at) {
        std::string const part = rest.substr(0, at);
        rest.erase(0, at + 1);
        return part;
    };
    std::size_t const slash = rest.find('/');
    if (slash == rest.npos) wrong();
    if (std::size_t const at = rest.find('@'); at < slash) n.user = before(at);
    n.pool = before(rest.find('/'));
    if (std::size_t const at = rest.find('@'); at != rest.npos) {
        n.snapshot = rest.substr(at + 1);
        rest.resize(at);
        if (n.snapshot.empty() || n.snapshot.find_first_of("@/") != n.snapshot.npos) wrong();
    }
    if (std::size_t const at = rest.find('/'); at != rest.npos) {
        n.pool_namespace = before(at);
        if (n.pool_namespace.empty()) wrong();
    }
    n.image = rest;
    if (n.user.empty() || n.pool.empty() || n.image.empty() || n.image.find('/') != n.image.npos)
        wrong();
    return n;
}

rbd_image::rbd_image(
    rbd_name const& name,
    rbd_access const& access,
    bool is_read_only,
    std::function<void()> on_change
)
    : on_change_{std::move(on_change)} {
    connect(name, access);
    ceph_functions const& f = ceph();
    bool const has_snapshot = !name.snapshot.empty();
    auto const open = is_read_only || has_snapshot ? f.rbd_open_read_only : f.rbd_open;
    char const* const snapshot = has_snapshot ? name.snapshot.c_str() : nullptr;
    if (int const r = open(pool_.get(), name.image.c_str(), &image_, snapshot); r < 0) {
        if (r == -ETIMEDOUT) refuse(r, no_answer);
        if (r != -ENOENT) refuse(r, "image " + name.image + ": " + text_of(r));
        refuse(
            r,
            "pool " + name.pool + " has no image " + name.image +
                (has_snapshot ? " with a snapshot " + name.snapshot : std::string{})
        );
    }
    try {
        read_features();
        read_identity(name);
        auto const tell = [](void* self) { static_cast<rbd_image*>(self)->on_change_(); };
        is_watched_ = !has_snapshot && f.rbd_update_watch(image_, &watch_, tell, this) == 0;
    } catch (...) {
        f.rbd_close(image_);
        throw;
    }
}

rbd_image::~rbd_image() {
    if (is_watched_) ceph().rbd_update_unwatch(image_, watch_);
    ceph().rbd_close(image_);
}

void rbd_image::connect(rbd_name const& name, rbd_access const& access) {
    ceph_functions const& f = ceph();
    std::string const user = "client." + name.user;
    rados_t cluster = nullptr;
    if (int const r = f.rados_create2(&cluster, "ceph", user.c_str(), 0); r < 0)
        refuse(r, user + ": " + text_of(r));
    cluster_.reset(cluster);
    // What it has to say, it says by its results; a configuration may say otherwise.
    for (char const* const to_stderr : {"log_to_stderr", "err_to_stderr"})
        set(cluster, to_stderr, "false");
    char const* const file = access.configuration.empty() ? nullptr : access.configuration.c_str();
    if (int const r = f.rados_conf_read_file(cluster, file); r < 0)
        refuse(
            r,
            "Ceph's configuration " +
                (file != nullptr ? access.configuration : "($CEPH_CONF or /etc/ceph/ceph.conf)") +
                ": " + text_of(r)
        );
    if (!access.keyring.empty()) set(cluster, "keyring", access.keyring);
    // A write that is completed is stored.
    set(cluster, "rbd_cache", "false");
    std::string const seconds = std::to_string(access.patience.count());
    for (char const* const time :
         {"client_mount_timeout", "rados_mon_op_timeout", "rados_osd_op_timeout"})
        set(cluster, time, seconds);
    if (int const r = f.rados_connect(cluster); r < 0) {
        if (r == -ETIMEDOUT) refuse(r, "no monitor of the cluster answers");
        if (r == -ENOENT) refuse(r, "there is no key for " + user);
        if (r == -EACCES || r == -EPERM)
            refuse(r, "the cluster refuses " + user + ", or has no key for it");
        refuse(r, "the cluster refuses " + user + ": " + text_of(r));
    }
    rados_ioctx_t pool = nullptr;
    if (int const r = f.rados_ioctx_create(cluster, name.pool.c_str(), &pool); r < 0)
        refuse(
            r,
            r == -ENOENT ? "the cluster has no pool " + name.pool
                         : "pool " + name.pool + ": " + text_of(r)
        );
    pool_.reset(pool);
    f.rados_ioctx_set_namespace(pool, name.pool_namespace.c_str());
    // A pool without space refuses writes, instead of keeping them until there is some.
    f.rados_set_pool_full_try(pool);
}

void rbd_image::read_features() {
    ceph_functions const& f = ceph();
    rbd_image_info_t info{};
    if (int const r = f.rbd_stat(image_, &info, sizeof info); r < 0)
        refuse(r, r == -ETIMEDOUT ? no_answer : "the image's size: " + text_of(r));
    features_.size_bytes = info.size;
    features_.optimal_bytes = info.obj_size;
    std::uint64_t unit = 0;
    std::uint64_t count = 1;
    if (f.rbd_get_stripe_count(image_, &count) == 0 && count > 1 &&
        f.rbd_get_stripe_unit(image_, &unit) == 0)
        features_.optimal_bytes = unit;
}

void rbd_image::read_identity(rbd_name const& name) {
    ceph_functions const& f = ceph();
    std::array<char, 64> cluster{};
    std::array<char, 256> id{};
    std::uint64_t snapshot = 0;
    int r = f.rados_cluster_fsid(cluster_.get(), cluster.data(), cluster.size());
    if (r >= 0) r = f.rbd_get_id(image_, id.data(), id.size());
    if (r >= 0 && !name.snapshot.empty())
        r = f.rbd_snap_get_id(image_, name.snapshot.c_str(), &snapshot);
    if (r < 0) refuse(r, "the image's identifier: " + text_of(r));
    id_ = id.data();
    identity_ = std::string{cluster.data()} + ' ' +
                std::to_string(f.rados_ioctx_get_id(pool_.get())) + ' ' + name.pool_namespace +
                ' ' + id_ + ' ' + std::to_string(snapshot);
}

std::uint64_t rbd_image::size_bytes() const noexcept {
    std::uint64_t bytes = 0;
    return ceph().rbd_get_size(image_, &bytes) == 0 ? bytes : 0;
}

bool rbd_image::answers(std::uint64_t offset) const noexcept {
    std::uint64_t size = 0;
    std::time_t time = 0;
    std::array<char, 512> block{};
    return ceph().rados_stat(pool_.get(), ("rbd_header." + id_).c_str(), &size, &time) == 0 &&
           ceph().rbd_read(image_, offset, block.size(), block.data()) >= 0;
}

bool rbd_image::shut_out_owner() const noexcept {
    ceph_functions const& f = ceph();
    int is_mine = 0;
    if (f.rbd_is_exclusive_lock_owner(image_, &is_mine) != 0 || is_mine != 0) return false;
    rbd_lock_mode_t mode = RBD_LOCK_MODE_EXCLUSIVE;
    std::array<char*, 1> owners{};
    std::size_t count = owners.size();
    if (f.rbd_lock_get_owners(image_, &mode, owners.data(), &count) != 0 || count == 0)
        return false;
    bool const is_done = f.rbd_lock_break(image_, mode, owners[0]) == 0;
    f.rbd_lock_get_owners_cleanup(owners.data(), count);
    return is_done;
}

}  // namespace rcverbs::nvme::detail
