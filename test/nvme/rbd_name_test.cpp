// Names of images in a Ceph cluster, and what is refused before there is a cluster.
#include <rcverbs/nvme/rbd_store.hpp>

#include <boost/asio/io_context.hpp>

#include <string>

#include "rbd_image.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
namespace nvme = rcverbs::nvme;

TEST_CASE("rbd store: a name has a user, a pool, a namespace, an image and a snapshot") {
    struct row {
        std::string text;
        std::string user, pool, pool_namespace, image, snapshot;
    };
    for (row const& r :
         {row{"rbd/disk", "admin", "rbd", "", "disk", ""},
          row{"me@rbd/disk", "me", "rbd", "", "disk", ""},
          row{"rbd/disk@monday", "admin", "rbd", "", "disk", "monday"},
          row{"me@rbd/team/disk@monday", "me", "rbd", "team", "disk", "monday"}}) {
        INFO(r.text);
        nvme::detail::rbd_name const n = nvme::detail::parse_rbd_name(r.text);
        CHECK(n.user == r.user);
        CHECK(n.pool == r.pool);
        CHECK(n.pool_namespace == r.pool_namespace);
        CHECK(n.image == r.image);
        CHECK(n.snapshot == r.snapshot);
    }
    for (std::string const text :
         {"",
          "disk",
          "/disk",
          "rbd/",
          "@rbd/disk",
          "me@/disk",
          "rbd//disk",
          "rbd/disk@",
          "rbd/a@b@c",
          "rbd/a@b/c",
          "rbd/team/",
          "a/b/c/d",
          "me@disk"}) {
        INFO(text);
        boost::asio::io_context io;
        try {
            nvme::rbd_store const s{io.get_executor(), text};
            FAIL("taken");
        } catch (boost::system::system_error const& e) {
            CHECK(e.code() == errc::invalid_option);
            CHECK(std::string{e.what()}.find("is not [USER@]POOL") != std::string::npos);
        }
    }
}

TEST_CASE("rbd store: options are checked before anything is asked") {
    boost::asio::io_context io;
    nvme::rbd_store_options o;
    o.patience = std::chrono::seconds{0};
    CHECK_THROWS_WITH(
        nvme::rbd_store(io.get_executor(), "rbd/disk", o), test::ContainsSubstring("patience")
    );
    o = {};
    o.block_bytes = 1000;
    CHECK_THROWS_WITH(
        nvme::rbd_store(io.get_executor(), "rbd/disk", o), test::ContainsSubstring("block_bytes")
    );
}
