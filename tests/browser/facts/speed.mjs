export async function facts() {}
