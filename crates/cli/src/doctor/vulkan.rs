//! Names of the devices that Vulkan shows, if its loader is there.

use std::{
    ffi::{CStr, c_char, c_void},
    path::Path,
    ptr::{null, null_mut},
};

use cuda::{functions, library::Library};

functions! {
    /// Vulkan's loader; what is answered by functions that answer nothing is not looked at.
    pub struct Loader {
        vkCreateInstance(*const InstanceInfo, *const c_void, *mut *mut c_void);
        vkDestroyInstance(*mut c_void, *const c_void);
        vkEnumeratePhysicalDevices(*mut c_void, *mut u32, *mut *mut c_void);
        vkGetPhysicalDeviceProperties(*mut c_void, *mut Properties);
    }
}

/// `VkInstanceCreateInfo`: the least that is allowed.
#[repr(C)]
pub struct InstanceInfo {
    kind: u32,
    next: *const c_void,
    flags: u32,
    application: *const c_void,
    layer_count: u32,
    layers: *const c_void,
    extension_count: u32,
    extensions: *const c_void,
}

/// `VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO`.
const INSTANCE_INFO: u32 = 1;

/// `VkPhysicalDeviceProperties`, of which only the name is read; it has 824 bytes.
#[repr(C, align(8))]
pub struct Properties {
    numbers: [u32; 5],
    name: [c_char; 256],
    rest: [u8; 1024],
}

const MAX_DEVICES: usize = 16;

/// None where there is no Vulkan, or it does not start.
pub fn devices() -> Vec<String> {
    let loader = Library::local(Path::new("libvulkan.so.1")).and_then(Loader::of);
    loader.map_or_else(|_| Vec::new(), |loader| names(&loader))
}

fn names(loader: &Loader) -> Vec<String> {
    let info = InstanceInfo {
        kind: INSTANCE_INFO,
        next: null(),
        flags: 0,
        application: null(),
        layer_count: 0,
        layers: null(),
        extension_count: 0,
        extensions: null(),
    };
    let mut instance = null_mut();
    let mut devices = [null_mut(); MAX_DEVICES];
    let mut count = MAX_DEVICES as u32;
    let mut names = Vec::new();
    // SAFETY: places to write to, as large as Vulkan is told; devices live as long as the
    // instance, and a name ends within its 256 bytes.
    unsafe {
        if (loader.vkCreateInstance)(&info, null(), &mut instance) != 0 {
            return names;
        }
        // More devices than asked for is a positive answer.
        if (loader.vkEnumeratePhysicalDevices)(instance, &mut count, devices.as_mut_ptr()) >= 0 {
            for &device in devices.iter().take(count as usize) {
                let mut properties = Properties {
                    numbers: [0; 5],
                    name: [0; 256],
                    rest: [0; 1024],
                };
                (loader.vkGetPhysicalDeviceProperties)(device, &mut properties);
                let name = CStr::from_ptr(properties.name.as_ptr());
                names.push(name.to_string_lossy().into_owned());
            }
        }
        (loader.vkDestroyInstance)(instance, null());
    }
    names
}
