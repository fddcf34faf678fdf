# add_server_store(STORE SOURCE...): the library rcverbs::nvme_STORE in this folder, with STORE_store.hpp: an own one for each store, so that
# what it needs is a dependency of those only who want it.
function(add_server_store store)
    set(library rcverbs_nvme_${store})
    add_library(${library})
    add_library(rcverbs::nvme_${store} ALIAS ${library})
    target_sources(
        ${library}
        PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${CMAKE_CURRENT_SOURCE_DIR}/include/rcverbs/nvme/${store}_store.hpp
        PRIVATE ${ARGN}
    )
    target_include_directories(${library} PRIVATE src ${PROJECT_SOURCE_DIR}/lib/nvme/src ${PROJECT_SOURCE_DIR}/lib/src)
    target_link_libraries(${library} PUBLIC rcverbs::nvme)
    use_build_flags(${library})
    set_target_properties(
        ${library}
        PROPERTIES
            POSITION_INDEPENDENT_CODE ON
            CXX_VISIBILITY_PRESET hidden
            VISIBILITY_INLINES_HIDDEN ON
            VERIFY_INTERFACE_HEADER_SETS ON
            EXPORT_NAME nvme_${store}
            VERSION ${PROJECT_VERSION}
            SOVERSION ${rcverbs_soversion}
    )
    install(
        TARGETS ${library}
        EXPORT ${library}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT nvme_${store} NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    )
    install(
        EXPORT ${library}
        NAMESPACE rcverbs::
        FILE rcverbs-nvme-${store}-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rcverbs
        COMPONENT development
    )
endfunction()
