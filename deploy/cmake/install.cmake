# What cmake --install lays down, by component: server (the daemon, ropectl and
# what belongs to them), libraries (what programs run with), devel (what they
# are built with).
include(CMakePackageConfigHelpers)
set(roped_cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/roped)

# roped_install_library(TARGET PART DESCRIPTION): found by find_package(roped)
# as roped::PART and by pkg-config as TARGET, wherever the tree is moved
function(roped_install_library library part description)
  install(TARGETS ${library} EXPORT roped_${part}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libraries
    NAMELINK_COMPONENT devel)
  install(EXPORT roped_${part} NAMESPACE roped:: FILE roped-${part}.cmake
    DESTINATION ${roped_cmake_folder} COMPONENT devel)
  file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
  configure_file(${PROJECT_SOURCE_DIR}/deploy/cmake/library.pc.in
    ${library}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${library}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
endfunction()

write_basic_package_version_file(roped-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES deploy/cmake/roped-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/roped-config-version.cmake
  DESTINATION ${roped_cmake_folder} COMPONENT devel)
